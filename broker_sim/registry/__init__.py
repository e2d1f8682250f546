"""The registry of a cluster: sessions, nodes and the metadata log.

What ZooKeeper is to Kafka before KRaft, as a state machine with its own journal, which the hosts
drive as they drive a broker.
"""
