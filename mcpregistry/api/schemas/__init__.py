"""Shapes of requests and answers, one file per aggregate; ``…_out`` turns a row into its answer."""
