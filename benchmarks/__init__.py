"""Proofs by measurement: what dltune predicts against what whole training runs give.

`workloads` says what is trained on, `training` trains, `tuners` choose, `analysis` answers one question in each file.
`suite` and `gpu` start a `session` of `screening` and `rounds`, whose `records` `report` lays out; `footprint`,
`coverage` and `replay` (over `traces`) are started on their own.
"""
