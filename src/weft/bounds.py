"""The bounds of what libraries compute for a stranger: the place that says how much of it may be.

docs/security.md lists them. A request that exceeds one is refused with a message that names it.
"""

from __future__ import annotations

CHUNKS = 8192
"""Maximum number of chunks of a chunked body, whatever their size."""
CHUNK_BYTES = 128
"""A body may have one more chunk for each CHUNK_BYTES bytes that it has."""
CONSTRAINT_BYTES = 1 << 20
"""Maximum number of bytes of a grammar, a JSON schema or a regular expression."""
CONSTRAINT_CPU_SECONDS = 2
"""Seconds of a processor that a constraint may take to compile, in a process of its own."""
CONSTRAINT_SECONDS = 10.0
"""Seconds that a constraint may take to compile, with the time in which it waits for others."""
CONSTRAINT_MEMORY = 1 << 30
"""Maximum number of bytes of address space of the process that compiles constraints."""
CONSTRAINTS_AT_ONCE = 2
"""Maximum number of processes that compile constraints; further ones wait."""
SCHEMA_ADDRESS = 1024
"""Maximum number of characters of an address or an anchor in a JSON schema."""
SCHEMA_UNITS = 1 << 25
"""Maximum work on a JSON schema before it is compiled: 64 units and the length of its pointer for
each visit to a part of it."""

DIFFUSION_STEPS = 4096
"""Maximum number of steps of a text by diffusion."""
DIFFUSION_TOKENS = 1 << 22
"""Maximum number of tokens that the steps of a text by diffusion compute, each of them the prompt
and the whole answer: 1024 steps of 4096 tokens."""

PICKLE_STEPS = 1 << 21
"""Maximum number of instructions of a pickle; a tensor takes some thirty."""
PICKLE_BYTES = 1 << 23
"""Maximum number of bytes of the pickle in a checkpoint of PyTorch, which describes its tensors
with about 150 bytes each; their numbers are beside it."""

TENSOR_AXES = 8
"""Maximum number of axes of a tensor in such a pickle; kernels of three-dimensional convolutions
have five."""

MEDIA_BYTES = 64 << 20
"""Maximum number of bytes of a file of an image or a sound."""
PIXELS = 1 << 25
"""Maximum number of decoded pixels of an image: several times as many as any encoder reads."""
RESIZED_PIXELS = 1 << 26
"""Maximum number of pixels that an image is enlarged or filled up to, in front of an encoder."""
IMAGE_TILES = 64
"""Maximum number of tiles of an image in a shape of an encoder's list."""
IMAGE_SHAPES = 512
"""Maximum number of shapes in such a list."""
SEEN_LAYERS = 64
"""Maximum number of outputs of an encoder's layers that its projectors see."""
POOLED_SHARES = 1 << 24
"""Maximum number of shares of patches in the means with which a Q-Former's queries begin."""
JPEG_PIXELS = 1 << 27
"""Maximum number of pixels of a JPEG; one of more than `PIXELS` is decoded at a half, a quarter or
an eighth."""
IMAGE_PARTS = 1 << 16
"""Maximum number of segments, chunks and blocks of the file of an image. A scan of a JPEG counts as
1024 of them, and 256 bytes of its metadata as one."""
SAMPLES = 1 << 26
"""Maximum number of samples of a channel of a sound, at its own rate and at the encoder's: 23
minutes at 48 kHz, 69 at 16 kHz."""
RECORDING_BYTES = 1 << 32
"""Maximum number of bytes of a file on this machine that its own user has written down."""
RECORDING_SAMPLES = 1 << 29
"""Maximum number of samples of a channel of such a file: 3 hours at 48 kHz, 9 at 16 kHz."""
DECODED_AT_ONCE = 1 << 26
"""Maximum number of pixels and samples that are decoded at a time; further media wait."""
DECODED_OF_REQUEST = 1 << 27
"""Maximum number of pixels and samples of all images and sounds of a request."""
DECODINGS_WAITING = 8
"""Maximum number of requests whose media wait to be decoded."""
DECODING_SECONDS = 10.0
"""Seconds that they wait."""

TRANSCRIPT_PROMPT = 8192
"""Maximum number of characters of the text in front of a transcript."""
TRANSCRIPTS_WAITING = 16
"""Maximum number of requests for transcripts with times that wait, with the one that is written."""

SPEECH_CHARACTERS = 1 << 16
"""Maximum number of characters of a text that is spoken: about an hour."""
SPEECH_REQUEST_CHARACTERS = 4096
"""Maximum number of characters of a text that a server speaks."""
SPEECH_CELLS = 1024
"""Rows of voice, text and speech of a part of a text that there is memory for."""
SPEECH_CODES = 4096
"""Maximum number of codes that a decoder of sound reads at a time: 54 seconds of WavTokenizer's."""
SPEECH_WORDS = 40
"""Maximum number of words that a model of codes says in one go."""
SPEECHES_WAITING = 16
"""Maximum number of requests for speech that wait, with the one that is spoken."""
VOICE_SECONDS = 30.0
"""Maximum length of the sound of a voice."""
VOICE_BYTES = 1 << 26
"""Maximum number of bytes of a file of a voice."""
VOICES = 1 << 10
"""Maximum number of voices beside a model that are listed."""

TEMPLATE_UNITS = 1 << 26
"""Units of work that a chat template may take for any conversation: characters, and 16 a step."""
TEMPLATE_UNITS_OF_INPUT = 64
"""Units more for each character of the conversation."""

LOG_BYTES = 1 << 26
"""Maximum number of bytes of a log of ggml that are read, from its beginning."""
LOG_NODES = 1 << 16
"""Maximum number of nodes of a graph in such a log."""
LOG_LINE = 1 << 12
"""Maximum number of characters of a line of a log; a longer one is read in pieces."""
ENCODING_SECONDS = 20
"""Seconds of a processor that the package tokenizers may take to read a tokenizer.json, or for a
text."""
ENCODING_BYTES_PER_SECOND = 1 << 16
"""A longer text may take one more second for each of these bytes."""
ENCODING_MEMORY = 4 << 30
"""Maximum number of bytes of address space of the process in which that package encodes texts."""
TOKEN_LENGTH = 1024
"""Maximum number of characters, or bytes, of a token where every length of token is tried at every
place of a text (unigrams, WordPiece, PLaMo)."""
RANK_UNITS = 1 << 26
"""Maximum of the squares of the lengths of tokens, summed over a vocabulary of ranks, which is the
work of finding its merges; and maximum number of bytes of its file."""
CACHE_EVENTS = 1 << 14
"""Maximum number of updates of a cache that are kept while it is watched."""
CACHE_EVENT_RANGES = 16
"""Maximum number of ranges of cells, and of positions, that one of them names."""
