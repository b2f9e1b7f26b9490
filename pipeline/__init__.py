"""The conversation: turn machine, session, scheduling, settings, weights and the command line."""
