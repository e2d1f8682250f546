"""The whole life of a query's commits, without I/O: what runs is what the simulator runs.

    query.py        one batch of a streaming query, from the checkpoint on
    batch_write.py  one batch write, which has no checkpoint
    micro_batch.py  the transaction, tries and aborts: one way for all
    output.py       which output a commit belongs to; the same query, moved, or copied
    takeover.py     InitProducerId, other transactional ids, the baseline
    judgement.py    skip, do, or refuse: one pure function, and the facts it needs
    facts.py        asks the brokers for the facts of the judgement
    confirmation.py reads them again, of the broker that has answered TxnOffsetCommit
    progress.py     the committed offset that says how far a query has come
    checkpoint.py   what Spark logged for a batch
    former_outputs.py  which outputs the query has had: their ids are fenced
    journal.py      what the sink keeps in the checkpoint
    sources.py      which sources may be committed for a group
    set_progress.py progress set by hand
    plan.py         the values

Everything that is not here is asked of the host (`protocol.effects`): calls to brokers, time, the
files of the checkpoint, the staged record batches.
"""
