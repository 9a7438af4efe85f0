"""Guards the engine against plug-ins of other distributions: every call is timed, every answer is checked."""
