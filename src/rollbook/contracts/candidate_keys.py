"""Names of the streams in which a policy sees a shell of candidates and answers with its choice.

Replays of stores, chains logged as episodes and learned policies all use them.
"""

from __future__ import annotations

FEATURES_KEY = "/candidates/features"
"""float32 [A, F]: NaN where the shell is smaller than the widest one."""
VALID_KEY = "/candidates/valid"
"""bool [A]"""
POSITION_KEY = "/candidates/position_id"
"""int32 [A]: position family; -1 for none."""
HISTORY_KEY = "/candidates/history"
"""float32 [H, F]: features of the earlier choices, newest first; NaN before the first choice."""
CHOICE_KEY = "/choice/index"
"""Answer of a policy: the index of a candidate in its shell."""
SCORE_KEY = "/choice/score"
"""Answer of a policy: a score for each candidate. The valid candidate with the greatest score is chosen."""
NAN_IS_NO_CANDIDATE = (FEATURES_KEY, HISTORY_KEY, SCORE_KEY)
"""Streams in which NaN stands where there is no candidate, or none that could be chosen."""
FEATURE_NAMES_METADATA = "actor_feature_names"
"""Key of an episode's metadata: the names of the columns of the features, in order."""
