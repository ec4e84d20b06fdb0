"""Engines' own spans in our words: what vLLM, SGLang, TGI, TensorRT-LLM and Dynamo emit.

`summary_of` gives the attributes to add to one span, `rewritten` adds them to all. The table in
`rows` says per engine what its span holds; `ottl` renders the same table as statements for the
Collector's `transform` processor. Spans are edited, never made.
"""

from otel_llm.servers.native.read import rewritten, summary_of

__all__ = ["rewritten", "summary_of"]
