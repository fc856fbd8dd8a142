"""What seeing (`vision/`) and hearing (`audio/`) share: a tower beside a context, the parts of
messages that are images or sounds, and prompts with them. The towers are in an `mmproj` file beside
the model (`LLM(path, mmproj=...)`)."""
