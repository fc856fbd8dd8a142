"""Shared parts of `vision/` and `audio/`: the base of towers, bytes of media, and the parts of
messages that are images or sounds. The towers are in an `mmproj` file beside the model
(`LLM(path, mmproj=...)`)."""
