"""The application: the only place that joins engine, tasks, analyses and reports."""
