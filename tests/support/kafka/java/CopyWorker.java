import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Consume, transform, produce, commit the offsets in the same transaction: one worker of a group.
 *
 * <p>Words: bootstrap, input, output, group, transactional id, assignor, the timeout of
 * its session and of its transactions in milliseconds, instance id (or "-").
 * Prints an "assigned" event with what it owns and a "committed" event for each transaction. Told
 * "stall" on stdin it prints "stalled" in the middle of its next transaction, everything sent and
 * nothing committed, and waits there to be killed; told "close" it leaves the group and ends.
 */
public final class CopyWorker {
    private static final AtomicReference<String> ORDER = new AtomicReference<>("run");

    private CopyWorker() {
    }

    public static void main(String[] words) throws Exception {
        Thread orders = new Thread(CopyWorker::readOrders);
        orders.setDaemon(true);
        orders.start();
        Map<String, Object> settings = new HashMap<>(Map.of(
            "isolation.level", "read_committed",
            "max.poll.records", "10",
            "session.timeout.ms", words[6],
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + words[5]));
        if (!words[7].equals("-")) {
            settings.put("group.instance.id", words[7]);
        }
        Object[] pairs = settings.entrySet().stream()
            .flatMap(each -> java.util.stream.Stream.of(each.getKey(), each.getValue())).toArray();
        try (KafkaConsumer<String, String> consumer = Clients.consumer(words[0], words[3], pairs);
                KafkaProducer<String, String> producer = Clients.transactional(words[0], words[4],
                    "transaction.timeout.ms", words[6], "linger.ms", 1)) {
            consumer.subscribe(List.of(words[1]), new Teller(consumer));
            while (!ORDER.get().equals("close")) {
                ConsumerRecords<String, String> records = consumer.poll(Clients.SHORT);
                if (!records.isEmpty()) {
                    copy(consumer, producer, records, words[2]);
                }
            }
        }
        Clients.print(Clients.seen("name", "closed"));
        System.exit(0);
    }

    private static void readOrders() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                ORDER.set(line);
            }
        } catch (java.io.IOException gone) {
            System.exit(1);
        }
    }

    /** One transaction; what the group refuses is aborted and read again from what is committed. */
    private static void copy(
        KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer,
        ConsumerRecords<String, String> records, String output
    ) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        producer.beginTransaction();
        try {
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(output, record.key(), record.value()));
                offsets.put(new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            if (ORDER.get().equals("stall")) {
                producer.flush();
                tell("stalled", consumer, records.count());
                Thread.sleep(Long.MAX_VALUE);
            }
            producer.commitTransaction();
            tell("committed", consumer, records.count());
        } catch (CommitFailedException rebalanced) {
            producer.abortTransaction();
            for (TopicPartition place : consumer.assignment()) {
                OffsetAndMetadata known = consumer.committed(java.util.Set.of(place)).get(place);
                consumer.seek(place, known == null ? 0 : known.offset());
            }
            Clients.print(Clients.seen("name", "aborted"));
        }
    }

    private static void tell(String name, KafkaConsumer<String, String> consumer, int records)
        throws Exception {
        int generation = consumer.groupMetadata().generationId();
        Clients.print(Clients.seen("name", name, "records", records, "generation", generation));
    }

    /** Prints what the worker owns after each change. */
    private record Teller(KafkaConsumer<String, String> consumer)
        implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            tell("revoked", places);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            tell("assigned", consumer.assignment());
        }

        private static void tell(String name, Collection<TopicPartition> places) {
            try {
                Clients.print(Clients.seen("name", name, "partitions", Clients.numbers(places)));
            } catch (Exception wrong) {
                throw new IllegalStateException(wrong);
            }
        }
    }
}
