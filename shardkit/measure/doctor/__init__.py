"""Why a training script's GPU waits: its run watched, a verdict, and what to change first."""
