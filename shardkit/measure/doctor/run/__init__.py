"""Running a script under watch: its processes, what they wrote down, its profile, a second run."""
