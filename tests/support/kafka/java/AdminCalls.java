import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;

import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;

/** What the Admin client sees of topics, configs, groups and transactions, as JSON. */
public final class AdminCalls {
    private AdminCalls() {
    }

    public static void main(String[] words) throws Exception {
        Clients.call(AdminCalls.class, words);
    }

    /** Create a topic, look at the answer, describe it by name and id, delete it by id. */
    static Map<String, Object> topicLife(String[] words) throws Exception {
        String topic = words[1];
        try (Admin admin = Clients.admin(words[0])) {
            NewTopic wanted = new NewTopic(topic, 5, (short) 1).configs(Map.of("segment.ms", "60000"));
            CreateTopicsOptions only = new CreateTopicsOptions().validateOnly(true);
            admin.createTopics(List.of(wanted), only).all().get();
            boolean made = admin.listTopics().names().get().contains(topic);
            CreateTopicsResult created = admin.createTopics(List.of(wanted));
            created.all().get();
            Uuid id = created.topicId(topic).get();
            // The broker hears of a new topic a moment after the controller's answer.
            Clients.await("the topic's partitions", () -> count(admin, topic) == 5);
            TopicDescription byName =
                admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            TopicDescription byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id)))
                .allTopicIds().get().get(id);
            DescribeTopicsOptions pages =
                new DescribeTopicsOptions().partitionSizeLimitPerResponse(2);
            TopicDescription paged =
                admin.describeTopics(List.of(topic), pages).allTopicNames().get().get(topic);
            String twice = Clients.error(() -> admin.createTopics(List.of(wanted)).all().get());
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
            Clients.await("the topic to be gone", () -> Clients.error(() ->
                admin.describeTopics(List.of(topic)).allTopicNames().get())
                    .equals("UnknownTopicOrPartitionException"));
            return Clients.seen(
                "made by validateOnly", made,
                "partitions", created.numPartitions(topic).get(),
                "replication", created.replicationFactor(topic).get(),
                "segment.ms", created.config(topic).get().get("segment.ms").value(),
                "same id", byName.topicId().equals(id) && byId.topicId().equals(id),
                "name by id", byId.name().equals(topic),
                "paged", paged.partitions().stream().map(p -> p.partition()).toList(),
                "twice", twice,
                "unknown id", Clients.error(() -> admin
                    .describeTopics(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid())))
                    .allTopicIds().get()));
        }
    }

    /** createPartitions: refused, only validated, done. */
    static Map<String, Object> partitions(String[] words) throws Exception {
        String topic = words[1];
        try (Admin admin = Clients.admin(words[0])) {
            CreatePartitionsOptions only = new CreatePartitionsOptions().validateOnly(true);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4)), only).all().get();
            int validated = count(admin, topic);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            Clients.await("four partitions", () -> count(admin, topic) == 4);
            return Clients.seen(
                "validated", validated,
                "same", Clients.error(() -> admin.createPartitions(
                    Map.of(topic, NewPartitions.increaseTo(4))).all().get()),
                "fewer", Clients.error(() -> admin.createPartitions(
                    Map.of(topic, NewPartitions.increaseTo(3))).all().get()),
                "unknown topic", Clients.error(() -> admin.createPartitions(
                    Map.of(topic + "-absent", NewPartitions.increaseTo(3))).all().get()),
                "odd assignment", Clients.error(() -> admin.createPartitions(
                    Map.of(topic, NewPartitions.increaseTo(6, List.of(List.of(77))))).all().get()));
        }
    }

    private static int count(Admin admin, String topic) {
        try {
            return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic)
                .partitions().size();
        } catch (Exception notYet) {
            return -1;
        }
    }

    /** incrementalAlterConfigs with all four operations. */
    static Map<String, Object> configs(String[] words) throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, words[1]);
        try (Admin admin = Clients.admin(words[0])) {
            alter(admin, topic, false, "retention.ms", "1000", AlterConfigOp.OpType.SET);
            alter(admin, topic, false, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
            String appended = settled(admin, topic, "cleanup.policy", "delete,compact").value();
            alter(admin, topic, false, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
            String subtracted = settled(admin, topic, "cleanup.policy", "compact").value();
            settled(admin, topic, "retention.ms", "1000");
            alter(admin, topic, true, "retention.ms", "2000", AlterConfigOp.OpType.SET);
            ConfigEntry set = entry(admin, topic, "retention.ms");
            alter(admin, topic, false, "retention.ms", "", AlterConfigOp.OpType.DELETE);
            ConfigEntry deleted = settled(admin, topic, "retention.ms", "604800000");
            return Clients.seen(
                "appended", appended,
                "subtracted", subtracted,
                "set", set.value() + " " + set.source() + " " + set.isDefault(),
                "deleted", deleted.value() + " " + deleted.source() + " " + deleted.isDefault(),
                "type", deleted.type().toString(),
                "no list", Clients.error(() -> alter(admin, topic, false, "retention.ms", "5",
                    AlterConfigOp.OpType.APPEND)),
                "bad value", Clients.error(() -> alter(admin, topic, false, "retention.ms", "soon",
                    AlterConfigOp.OpType.SET)),
                "unknown topic", Clients.error(() -> alter(admin,
                    new ConfigResource(ConfigResource.Type.TOPIC, words[1] + "-absent"),
                    false, "retention.ms", "5", AlterConfigOp.OpType.SET)),
                "describe unknown topic", Clients.error(() -> entry(admin,
                    new ConfigResource(ConfigResource.Type.TOPIC, words[1] + "-absent"),
                    "retention.ms")));
        }
    }

    private static void alter(
        Admin admin, ConfigResource resource, boolean validateOnly, String name, String value,
        AlterConfigOp.OpType operation
    ) throws Exception {
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), operation);
        AlterConfigsOptions options = new AlterConfigsOptions().validateOnly(validateOnly);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change)), options).all().get();
    }

    /** The entry once it has this value: a broker hears of a change a moment after its answer. */
    private static ConfigEntry settled(
        Admin admin, ConfigResource resource, String name, String value
    ) throws Exception {
        Clients.await(name + " to be " + value, () -> Clients.error(() -> {
            if (!entry(admin, resource, name).value().equals(value)) {
                throw new IllegalStateException();
            }
        }).equals("none"));
        return entry(admin, resource, name);
    }

    private static ConfigEntry entry(Admin admin, ConfigResource resource, String name)
        throws Exception {
        Map<ConfigResource, Config> all = admin.describeConfigs(List.of(resource)).all().get();
        return all.get(resource).get(name);
    }

    /** describeCluster, describeLogDirs, describeFeatures. */
    static Map<String, Object> cluster(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        try (Admin admin = Clients.admin(words[0])) {
            var cluster = admin.describeCluster();
            var nodes = cluster.nodes().get();
            var node = nodes.iterator().next();
            Map<String, LogDirDescription> folders =
                admin.describeLogDirs(List.of(node.id())).allDescriptions().get().get(node.id());
            LogDirDescription folder = folders.values().iterator().next();
            var feature = admin.describeFeatures().featureMetadata().get()
                .finalizedFeatures().get("transaction.version");
            return Clients.seen(
                "addresses", nodes.stream().map(n -> n.host() + ":" + n.port()).sorted().toList(),
                "controller", nodes.contains(cluster.controller().get()),
                "id length", cluster.clusterId().get().length(),
                "folders", folders.size(),
                "folder error", String.valueOf(folder.error()),
                "size", folder.replicaInfos().get(place).size(),
                "transaction.version", feature.maxVersionLevel());
        }
    }

    /** listOffsets with every specification, at both isolation levels, and deleteRecords. */
    static Map<String, Object> offsets(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        try (Admin admin = Clients.admin(words[0]);
                KafkaProducer<String, String> writer = Clients.transactional(words[0], words[2])) {
            writer.beginTransaction();
            for (int i = 0; i < 4; i++) {
                Clients.send(writer, words[1], 0, "committed " + i);
            }
            writer.commitTransaction();
            writer.beginTransaction();
            Clients.send(writer, words[1], 0, "open");
            Map<String, Object> seen = Clients.seen(
                "earliest", offset(admin, place, OffsetSpec.earliest(), false),
                "latest", offset(admin, place, OffsetSpec.latest(), false),
                "latest committed", offset(admin, place, OffsetSpec.latest(), true),
                "max timestamp", offset(admin, place, OffsetSpec.maxTimestamp(), false),
                "at 0", offset(admin, place, OffsetSpec.forTimestamp(0), false),
                "in a year", offset(admin, place, OffsetSpec.forTimestamp(
                    System.currentTimeMillis() + Duration.ofDays(365).toMillis()), false),
                "earliest local", offset(admin, place, OffsetSpec.earliestLocal(), false));
            writer.abortTransaction();
            // The records, two markers and the open record: the last stable offset is the end.
            Clients.await("the abort's marker", () -> Clients.error(() -> {
                if (offset(admin, place, OffsetSpec.latest(), true) != 7) {
                    throw new IllegalStateException();
                }
            }).equals("none"));
            seen.put("unknown partition", Clients.error(() ->
                // What is unknown is asked for until the time is over.
                offset(admin, new TopicPartition(words[1] + "-absent", 0), OffsetSpec.latest(), false, 3000)));
            return seen;
        }
    }

    private static long offset(
        Admin admin, TopicPartition place, OffsetSpec spec, boolean committed
    ) throws Exception {
        return offset(admin, place, spec, committed, (int) Clients.TIMEOUT.toMillis());
    }

    private static long offset(
        Admin admin, TopicPartition place, OffsetSpec spec, boolean committed, int timeoutMs
    ) throws Exception {
        ListOffsetsOptions options = new ListOffsetsOptions(committed
            ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED);
        options.timeoutMs(timeoutMs);
        return admin.listOffsets(Map.of(place, spec), options).partitionResult(place).get().offset();
    }

    /** deleteRecords up to an offset. */
    static Map<String, Object> deleteRecords(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        try (Admin admin = Clients.admin(words[0]);
                KafkaProducer<String, String> writer = Clients.producer(words[0])) {
            for (int i = 0; i < 10; i++) {
                Clients.send(writer, words[1], 0, "v" + i);
            }
            long low = admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(7)))
                .lowWatermarks().get(place).get().lowWatermark();
            return Clients.seen(
                "low watermark", low,
                "earliest", offset(admin, place, OffsetSpec.earliest(), false),
                "left", Clients.readAll(words[0], place, "read_committed"),
                "too far", Clients.error(() -> admin.deleteRecords(
                    Map.of(place, RecordsToDelete.beforeOffset(11))).all().get()));
        }
    }

    /** alterConsumerGroupOffsets, listConsumerGroupOffsets, deleteConsumerGroupOffsets. */
    static Map<String, Object> groupOffsets(String[] words) throws Exception {
        String group = words[2];
        TopicPartition first = new TopicPartition(words[1], 0);
        TopicPartition second = new TopicPartition(words[1], 1);
        try (Admin admin = Clients.admin(words[0])) {
            admin.alterConsumerGroupOffsets(group, Map.of(
                first, new OffsetAndMetadata(3, java.util.Optional.of(0), "a note"),
                second, new OffsetAndMetadata(4))).all().get();
            Map<TopicPartition, OffsetAndMetadata> before =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
            Map<TopicPartition, OffsetAndMetadata> after =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            admin.deleteConsumerGroups(List.of(group)).all().get();
            return Clients.seen(
                "first", before.get(first).offset() + " " + before.get(first).metadata() + " "
                    + before.get(first).leaderEpoch().orElse(-1),
                "second", before.get(second).offset() + " [" + before.get(second).metadata() + "]",
                "left", Clients.numbers(after.keySet()),
                "after the group", admin.listConsumerGroupOffsets(group)
                    .partitionsToOffsetAndMetadata().get().size(),
                "delete again", Clients.error(() ->
                    admin.deleteConsumerGroups(List.of(group)).all().get()));
        }
    }

    /** removeMembersFromConsumerGroup: one static member, then all. */
    static Map<String, Object> removeMembers(String[] words) throws Exception {
        String bootstrap = words[0];
        String group = words[2];
        try (Admin admin = Clients.admin(bootstrap);
                KafkaConsumer<String, String> one =
                    Clients.consumer(bootstrap, group, "group.instance.id", "one");
                KafkaConsumer<String, String> two = Clients.consumer(bootstrap, group)) {
            join(one, two, words[1]);
            String absent = Clients.error(() -> admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(
                    List.of(new MemberToRemove("nobody")))).all().get());
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(
                List.of(new MemberToRemove("one")))).all().get();
            Clients.await("the other to own all", () -> {
                two.poll(Clients.SHORT);
                return two.assignment().size() == 4;
            });
            int left = members(admin, group);
            admin.removeMembersFromConsumerGroup(
                group, new RemoveMembersFromConsumerGroupOptions()).all().get();
            return Clients.seen("absent", absent, "left", left, "in the end", members(admin, group));
        }
    }

    private static int members(Admin admin, String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size();
    }

    private static void join(
        KafkaConsumer<String, String> one, KafkaConsumer<String, String> two, String topic
    ) throws Exception {
        one.subscribe(List.of(topic));
        two.subscribe(List.of(topic));
        Clients.await("two partitions each", () -> {
            one.poll(Clients.SHORT);
            two.poll(Clients.SHORT);
            return one.assignment().size() == 2 && two.assignment().size() == 2;
        });
    }

    /** describeTransactions, listTransactions, describeProducers, while one is open and after. */
    static Map<String, Object> transactions(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        String id = words[2];
        try (Admin admin = Clients.admin(words[0]);
                KafkaProducer<String, String> writer = Clients.transactional(words[0], id)) {
            TransactionDescription empty = describe(admin, id);
            writer.beginTransaction();
            Clients.send(writer, words[1], 0, "v");
            TransactionDescription open = describe(admin, id);
            ProducerState producer = producers(admin, place).iterator().next();
            Map<String, TransactionListing> ongoing = list(admin, new ListTransactionsOptions()
                .filterStates(List.of(TransactionState.ONGOING)));
            Map<String, TransactionListing> byProducer = list(admin, new ListTransactionsOptions()
                .filterProducerIds(List.of(open.producerId())));
            Map<String, TransactionListing> old = list(admin, new ListTransactionsOptions()
                .filterOnDuration(3_600_000));
            writer.commitTransaction();
            Clients.await("the commit's end", () -> state(admin, id) == TransactionState.COMPLETE_COMMIT);
            ProducerState after = producers(admin, place).iterator().next();
            return Clients.seen(
                "empty", empty.state().toString(),
                "open", open.state() + " " + open.topicPartitions().equals(Set.of(place)) + " "
                    + open.transactionTimeoutMs() + " "
                    + (open.transactionStartTimeMs().orElse(-1) > 0),
                "producer", (producer.producerId() == open.producerId()) + " "
                    + (producer.producerEpoch() == open.producerEpoch()) + " "
                    + producer.lastSequence() + " "
                    + producer.currentTransactionStartOffset().orElse(-1),
                "ongoing", ongoing.containsKey(id),
                "by producer", byProducer.keySet().equals(Set.of(id)),
                "an hour old", old.containsKey(id),
                "after", after.currentTransactionStartOffset().orElse(-1),
                "epoch after", describe(admin, id).producerEpoch() - open.producerEpoch(),
                "absent", Clients.error(() -> describe(admin, id + "-absent")));
        }
    }

    /** fenceProducers: the producer is done for, its transaction aborted. */
    static Map<String, Object> fence(String[] words) throws Exception {
        String id = words[2];
        try (Admin admin = Clients.admin(words[0])) {
            KafkaProducer<String, String> writer = Clients.transactional(words[0], id);
            writer.beginTransaction();
            Clients.send(writer, words[1], 0, "v");
            int epoch = describe(admin, id).producerEpoch();
            admin.fenceProducers(List.of(id)).all().get();
            String commit = Clients.error(writer::commitTransaction);
            writer.close(Duration.ZERO);
            return Clients.seen(
                "commit", commit,
                "epoch grew", describe(admin, id).producerEpoch() > epoch,
                "readable", Clients.readAll(
                    words[0], new TopicPartition(words[1], 0), "read_committed"));
        }
    }

    /** abortTransaction by hand, as for a hanging one: the marker ends it in the partition only. */
    static Map<String, Object> abort(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        String id = words[2];
        try (Admin admin = Clients.admin(words[0]);
                KafkaProducer<String, String> writer = Clients.transactional(words[0], id)) {
            writer.beginTransaction();
            Clients.send(writer, words[1], 0, "v");
            ProducerState open = producers(admin, place).iterator().next();
            int coordinatorEpoch = Math.max(0, open.coordinatorEpoch().orElse(0));
            short older = (short) (open.producerEpoch() - 1);
            String stale = older < 0 ? "InvalidProducerEpochException" : Clients.error(() ->
                admin.abortTransaction(new AbortTransactionSpec(
                    place, open.producerId(), older, coordinatorEpoch)).all().get());
            admin.abortTransaction(new AbortTransactionSpec(
                place, open.producerId(), (short) open.producerEpoch(), coordinatorEpoch)).all().get();
            long start = producers(admin, place).iterator().next()
                .currentTransactionStartOffset().orElse(-1);
            String coordinator = describe(admin, id).state().toString();
            String commit = Clients.error(writer::commitTransaction);
            return Clients.seen(
                "stale epoch", stale,
                "start after", start,
                "coordinator's state", coordinator,
                "commit", commit,
                "readable", Clients.readAll(words[0], place, "read_committed"));
        }
    }

    private static TransactionDescription describe(Admin admin, String id) throws Exception {
        return admin.describeTransactions(List.of(id)).all().get().get(id);
    }

    private static TransactionState state(Admin admin, String id) {
        try {
            return describe(admin, id).state();
        } catch (Exception wrong) {
            throw new IllegalStateException(wrong);
        }
    }

    private static Map<String, TransactionListing> list(
        Admin admin, ListTransactionsOptions options
    ) throws Exception {
        Collection<TransactionListing> all = admin.listTransactions(options).all().get();
        return all.stream().collect(Collectors.toMap(
            TransactionListing::transactionalId, each -> each, (a, b) -> a, TreeMap::new));
    }

    private static List<ProducerState> producers(Admin admin, TopicPartition place)
        throws Exception {
        return admin.describeProducers(List.of(place)).all().get().get(place).activeProducers();
    }
}
