"""The state of Kafka's coordinators in its own topics: groups and their committed offsets, transactions.

In: the logs of `__consumer_offsets` and `__transaction_state`. Out: their state, and records that change offsets.
"""
