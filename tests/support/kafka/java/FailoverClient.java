import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The works of tests/support/clients/failover with Kafka's Java client; events.py has what it prints. */
public final class FailoverClient {
    private static final int PAUSE_MS = 50;
    private static final int DELIVERY_TIMEOUT_MS = 60_000;
    private static final int TRANSACTION_TIMEOUT_MS = 60_000;
    private static volatile boolean over = false;
    private static String bootstrap;
    private static String produced;
    private static String transacted;
    private static String group;
    private static String transactionalId;

    private static final ObjectMapper JSON = new ObjectMapper();

    /** What may throw anything. */
    private interface Work {
        void run() throws Exception;
    }

    private FailoverClient() {
    }

    public static void main(String[] words) throws Exception {
        bootstrap = words[0];
        produced = words[1];
        transacted = words[2];
        group = words[3];
        transactionalId = words[4];
        List<Thread> threads = List.of(
            started(FailoverClient::produce), started(FailoverClient::transact),
            started(FailoverClient::consume), started(FailoverClient::member));
        while (System.in.read() >= 0) {
            continue;
        }
        over = true;
        for (Thread each : threads) {
            each.join(20_000);
        }
        System.exit(0);
    }

    private static Thread started(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception thrown) {
                thrown.printStackTrace();
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void saw(String work, Object... what) throws Exception {
        Map<String, Object> event = new HashMap<>(named(what));
        event.put("at", System.currentTimeMillis());
        event.put("work", work);
        String line = JSON.writeValueAsString(event);
        synchronized (JSON) {
            System.out.println(line);
        }
    }

    /** A map from names and values in turn. */
    private static Map<String, Object> named(Object... pairs) {
        Map<String, Object> map = new HashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put((String) pairs[i], pairs[i + 1]);
        }
        return map;
    }

    private static Map<String, Object> settings(Object... more) {
        Map<String, Object> settings = named(more);
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private static KafkaProducer<String, String> producer(Object... more) {
        return new KafkaProducer<>(
            settings(more), new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Object... more) {
        Map<String, Object> settings = settings(more);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static String name(Throwable thrown) {
        Throwable cause = thrown instanceof java.util.concurrent.ExecutionException
            ? thrown.getCause() : thrown;
        return cause.getClass().getSimpleName();
    }

    /** One record after the other, each acknowledged by all replicas. */
    private static void produce() throws Exception {
        int value = 0;
        while (!over) {
            try (KafkaProducer<String, String> made = producer(
                    "acks", "all", "enable.idempotence", "true",
                    "delivery.timeout.ms", DELIVERY_TIMEOUT_MS)) {
                while (!over) {
                    made.send(new ProducerRecord<>(produced, 0, null, "" + value++)).get();
                    saw("produce", "ok", List.of(value - 1));
                    Thread.sleep(PAUSE_MS);
                }
            } catch (KafkaException | java.util.concurrent.ExecutionException thrown) {
                saw("produce", "error", name(thrown), "anew", true);
            }
        }
    }

    /** One transaction after the other, each with a record in two partitions. */
    private static void transact() throws Exception {
        int value = 0;
        while (!over) {
            try (KafkaProducer<String, String> made = producer("transactional.id", transactionalId,
                    "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)) {
                made.initTransactions();
                while (!over) {
                    commit(made, value++);
                    Thread.sleep(PAUSE_MS);
                }
            } catch (KafkaException thrown) {
                saw("transact", "error", name(thrown), "anew", true);
            }
        }
    }

    private static void commit(KafkaProducer<String, String> made, int value) throws Exception {
        try {
            made.beginTransaction();
            for (int partition = 0; partition < 2; partition++) {
                made.send(new ProducerRecord<>(transacted, partition, null, "" + value));
            }
            made.commitTransaction();
            saw("transact", "ok", List.of(value));
        } catch (ProducerFencedException fenced) {
            throw fenced;
        } catch (KafkaException thrown) {
            saw("transact", "error", name(thrown));
            made.abortTransaction();
        }
    }

    /** Read what produce() writes, from the first record. */
    private static void consume() throws Exception {
        try (KafkaConsumer<String, String> made = consumer()) {
            made.assign(List.of(new TopicPartition(produced, 0)));
            while (!over) {
                List<Integer> values = poll(made, "consume");
                if (!values.isEmpty()) {
                    saw("consume", "ok", values);
                }
            }
        }
    }

    /** The same as the only member of a group, which commits what it was given. */
    private static void member() throws Exception {
        try (KafkaConsumer<String, String> made = consumer("group.id", group)) {
            made.subscribe(List.of(produced));
            while (!over) {
                List<Integer> values = poll(made, "group");
                if (values.isEmpty()) {
                    continue;
                }
                try {
                    made.commitSync();
                    saw("group", "ok", values);
                } catch (KafkaException thrown) {
                    saw("group", "error", name(thrown));
                }
            }
        }
    }

    private static List<Integer> poll(KafkaConsumer<String, String> made, String work)
            throws Exception {
        List<Integer> values = new ArrayList<>();
        try {
            for (ConsumerRecord<String, String> record : made.poll(Duration.ofMillis(100))) {
                values.add(Integer.valueOf(record.value()));
            }
        } catch (KafkaException thrown) {
            saw(work, "error", name(thrown));
        }
        return values;
    }
}
