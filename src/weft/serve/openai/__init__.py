"""The OpenAI API: chats, completions, embeddings, ranks and transcripts."""
