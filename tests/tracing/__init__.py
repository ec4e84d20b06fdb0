"""`trace_request`, for engines and clients of one's own."""
