"""Why a watermark stands where it does: each cause with its condition, its sentence and its advice in one place.

A cause is a `Rule`, in the order of who can do something about it: `of_query` has those of the query and its
micro-batches, `of_waits` what an option, the source or another source lets splits wait for, and `of_records` those of
splits that are silent, empty or slow, and of event times. `answer` goes through all of them.
"""

__all__: list[str] = []
