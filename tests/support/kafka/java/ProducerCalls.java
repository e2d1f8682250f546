import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** What a transactional Java producer sees when it is fenced, too late, or in error, as JSON. */
public final class ProducerCalls {
    private static final Set<TransactionState> PREPARED =
        Set.of(TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT);

    private ProducerCalls() {
    }

    public static void main(String[] words) throws Exception {
        Clients.call(ProducerCalls.class, words);
    }

    private static TransactionDescription describe(Admin admin, String id) {
        try {
            return admin.describeTransactions(List.of(id)).all().get().get(id);
        } catch (Exception wrong) {
            throw new IllegalStateException(wrong);
        }
    }

    /** What read_committed sees once the markers are there: a commit is answered before. */
    private static List<String> committed(String[] words) throws Exception {
        try (Admin admin = Clients.admin(words[0])) {
            Clients.await("the markers", () -> !PREPARED.contains(describe(admin, words[2]).state()));
        }
        return Clients.readAll(words[0], new TopicPartition(words[1], 0), "read_committed");
    }

    /** A second producer of the same id while the first one's transaction is open. */
    static Map<String, Object> zombie(String[] words) throws Exception {
        KafkaProducer<String, String> zombie = Clients.transactional(words[0], words[2]);
        KafkaProducer<String, String> idle = Clients.transactional(words[0], words[2] + "-idle");
        zombie.beginTransaction();
        Clients.send(zombie, words[1], 0, "zombie");
        try (KafkaProducer<String, String> heir = Clients.transactional(words[0], words[2]);
                KafkaProducer<String, String> other =
                    Clients.transactional(words[0], words[2] + "-idle")) {
            heir.beginTransaction();
            Clients.send(heir, words[1], 0, "heir");
            String send = Clients.error(() -> Clients.send(zombie, words[1], 0, "late"));
            String commit = Clients.error(zombie::commitTransaction);
            String abort = Clients.error(zombie::abortTransaction);
            String begin = Clients.error(zombie::beginTransaction);
            String first = Clients.error(() -> {
                idle.beginTransaction();
                Clients.send(idle, words[1], 0, "idle");
            });
            String offsets = Clients.error(() -> idle.sendOffsetsToTransaction(
                Map.of(new TopicPartition(words[1], 0), new OffsetAndMetadata(1)),
                new ConsumerGroupMetadata(words[2])));
            heir.commitTransaction();
            return Clients.seen(
                "send", send, "commit", commit, "abort", abort, "begin", begin,
                "first send", first, "offsets", offsets, "readable", committed(words));
        } finally {
            zombie.close(Duration.ZERO);
            idle.close(Duration.ZERO);
        }
    }

    /** A transaction that the coordinator aborts because its time is over. */
    static Map<String, Object> timeout(String[] words) throws Exception {
        String id = words[2];
        try (Admin admin = Clients.admin(words[0]);
                KafkaProducer<String, String> slow = Clients.transactional(
                    words[0], id, "transaction.timeout.ms", 1000)) {
            int epoch = describe(admin, id).producerEpoch();
            slow.beginTransaction();
            Clients.send(slow, words[1], 0, "slow");
            Clients.await("the coordinator's abort",
                () -> describe(admin, id).state() == TransactionState.COMPLETE_ABORT);
            int after = describe(admin, id).producerEpoch();
            String commit = Clients.error(slow::commitTransaction);
            String abort = Clients.error(slow::abortTransaction);
            String again = Clients.error(() -> {
                slow.beginTransaction();
                Clients.send(slow, words[1], 0, "again");
                slow.commitTransaction();
            });
            return Clients.seen("epoch grew", after > epoch, "commit", commit, "abort", abort,
                "again", again, "readable", committed(words));
        }
    }

    /** The same, but the next call is a send. */
    static Map<String, Object> sendAfterTimeout(String[] words) throws Exception {
        String id = words[2];
        try (Admin admin = Clients.admin(words[0]);
                KafkaProducer<String, String> slow = Clients.transactional(
                    words[0], id, "transaction.timeout.ms", 1000)) {
            slow.beginTransaction();
            Clients.send(slow, words[1], 0, "slow");
            Clients.await("the coordinator's abort",
                () -> describe(admin, id).state() == TransactionState.COMPLETE_ABORT);
            String send = Clients.error(() -> Clients.send(slow, words[1], 0, "late"));
            String commit = Clients.error(slow::commitTransaction);
            String abort = Clients.error(slow::abortTransaction);
            String again = Clients.error(() -> {
                slow.beginTransaction();
                Clients.send(slow, words[1], 0, "again");
                slow.commitTransaction();
            });
            return Clients.seen("send", send, "commit", commit, "abort", abort,
                "again", again, "readable", committed(words));
        }
    }

    /** A record that is refused puts the producer in an abortable state; it goes on after abort. */
    static Map<String, Object> abortable(String[] words) throws Exception {
        String id = words[2];
        try (Admin admin = Clients.admin(words[0]);
                KafkaProducer<String, String> writer = Clients.transactional(
                    words[0], id, "max.request.size", 4_000_000)) {
            writer.beginTransaction();
            Clients.send(writer, words[1], 0, "lost");
            int epoch = describe(admin, id).producerEpoch();
            Future<RecordMetadata> big = writer.send(
                new ProducerRecord<>(words[1], 0, "k", "x".repeat(2_000_000)));
            String send = Clients.error(big::get);
            // The record's own error is told a moment before the transaction is in error.
            Clients.await("the error state", () ->
                Clients.error(writer::beginTransaction).endsWith("/RecordTooLargeException"));
            String commit = Clients.error(writer::commitTransaction);
            writer.abortTransaction();
            writer.beginTransaction();
            Clients.send(writer, words[1], 0, "kept");
            writer.commitTransaction();
            Clients.await("the commit",
                () -> describe(admin, id).state() == TransactionState.COMPLETE_COMMIT);
            return Clients.seen("send", send, "commit", commit,
                "epochs", describe(admin, id).producerEpoch() - epoch,
                "readable", committed(words));
        }
    }

    /** Empty transactions, an abort of what was never sent, a flush inside, a close in the middle. */
    static Map<String, Object> edges(String[] words) throws Exception {
        String id = words[2];
        try (Admin admin = Clients.admin(words[0])) {
            KafkaProducer<String, String> writer = Clients.transactional(words[0], id);
            writer.beginTransaction();
            writer.commitTransaction();
            String empty = describe(admin, id).state().toString();
            writer.beginTransaction();
            writer.abortTransaction();
            writer.beginTransaction();
            for (int i = 0; i < 3; i++) {
                writer.send(new ProducerRecord<>(words[1], 0, "k", "flushed " + i));
                writer.flush();
            }
            writer.commitTransaction();
            writer.beginTransaction();
            Clients.send(writer, words[1], 0, "unfinished");
            writer.close();
            String twice = Clients.error(writer::beginTransaction);
            try (KafkaProducer<String, String> next = Clients.transactional(words[0], id)) {
                String state = describe(admin, id).state().toString();
                return Clients.seen("after an empty commit", empty, "after close", twice,
                    "after init", state, "readable", committed(words));
            }
        }
    }

    /** sendOffsetsToTransaction with a generation that is not the group's, and then a right one. */
    static Map<String, Object> staleGeneration(String[] words) throws Exception {
        String group = words[2];
        TopicPartition place = new TopicPartition(words[1], 0);
        try (KafkaConsumer<String, String> member = Clients.consumer(words[0], group);
                Admin admin = Clients.admin(words[0]);
                KafkaProducer<String, String> writer = Clients.transactional(words[0], group)) {
            member.subscribe(List.of(words[1]));
            Clients.await("the assignment", () -> {
                member.poll(Clients.SHORT);
                return member.assignment().size() == 1;
            });
            // Its first question for a committed offset must be over, or it is answered once more.
            member.position(place);
            ConsumerGroupMetadata right = member.groupMetadata();
            ConsumerGroupMetadata older = new ConsumerGroupMetadata(
                group, right.generationId() - 1, right.memberId(), right.groupInstanceId());
            ConsumerGroupMetadata stranger = new ConsumerGroupMetadata(
                group, right.generationId(), "nobody", right.groupInstanceId());
            Map<TopicPartition, OffsetAndMetadata> offsets =
                Map.of(place, new OffsetAndMetadata(7, "from the transaction"));
            String stale = attempt(writer, offsets, older);
            String unknown = attempt(writer, offsets, stranger);
            writer.beginTransaction();
            writer.sendOffsetsToTransaction(offsets, right);
            Map<TopicPartition, OffsetAndMetadata> pending =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            writer.commitTransaction();
            // A committed offset that is still pending is waited for by require_stable.
            OffsetAndMetadata after = member.committed(java.util.Set.of(place)).get(place);
            return Clients.seen("stale", stale, "unknown", unknown,
                "pending", pending.size(),
                "committed", after.offset() + " " + after.metadata());
        }
    }

    private static String attempt(
        KafkaProducer<String, String> writer, Map<TopicPartition, OffsetAndMetadata> offsets,
        ConsumerGroupMetadata metadata
    ) {
        writer.beginTransaction();
        String error = Clients.error(() -> {
            writer.sendOffsetsToTransaction(offsets, metadata);
            writer.commitTransaction();
        });
        writer.abortTransaction();
        return error;
    }

    /** What each acks tells, and records that a topic does not take. */
    static Map<String, Object> refusals(String[] words) throws Exception {
        Map<String, Object> seen = new java.util.HashMap<>();
        for (String acks : List.of("0", "1", "all")) {
            try (KafkaProducer<String, String> writer = Clients.producer(
                    words[0], "acks", acks, "enable.idempotence", false)) {
                seen.put("acks " + acks, Clients.send(writer, words[1], 0, acks));
            }
        }
        try (KafkaProducer<String, String> impatient = Clients.producer(
                words[0], "max.block.ms", 700)) {
            seen.put("unknown partition", Clients.error(() ->
                Clients.send(impatient, words[1], 9, "v")));
        }
        try (KafkaProducer<String, String> writer = Clients.producer(
                words[0], "max.request.size", 4_000_000)) {
            seen.put("too large", Clients.error(() ->
                Clients.send(writer, words[1], 0, "x".repeat(2_000_000))));
            long tomorrow = System.currentTimeMillis() + Duration.ofDays(1).toMillis();
            seen.put("from tomorrow", Clients.error(() -> writer.send(
                new ProducerRecord<>(words[1], 0, tomorrow, "k", "v")).get()));
            seen.put("illegal topic", Clients.error(() -> Clients.send(writer, "a/b", 0, "v")));
            seen.put("goes on", Clients.send(writer, words[1], 0, "v"));
        }
        return seen;
    }
}
