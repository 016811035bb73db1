"""A whole engine: the released CPU build of vLLM serves a tiny model, and chunking may not change its vectors."""
