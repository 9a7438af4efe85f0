"""What stands between a plug-in of another distribution and the engine: every call is timed, every answer checked."""
