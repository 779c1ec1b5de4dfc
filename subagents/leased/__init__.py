"""Work as rows under leases: taking and keeping them (``leases``), and working on them beside each
other (``driver``).

It knows neither runs of expert tools nor maintenance requests, which both are worked on so.
"""
