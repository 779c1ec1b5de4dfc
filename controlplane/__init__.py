"""The project: settings, environment, processes, health. It knows the apps, but no domain words of
theirs."""
