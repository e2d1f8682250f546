import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaClientSupplier;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * A Kafka Streams application, exactly_once_v2: it copies lines, and counts their words.
 *
 *     java Words.java BOOTSTRAP APPLICATION_ID LINES COPY COUNTS STATE_FOLDER
 *
 * It prints JSON, {"name": ...}: "running", "failed" and "closed". If it reads "stall", it prints
 * "stalled" when its thread is about to commit, with everything sent, and waits there until it
 * reads "go". If it reads "close", it leaves.
 */
public final class Words {
    private static boolean stalls;

    private Words() {
    }

    private static synchronized void tell(String name) {
        System.out.println("{\"name\": \"" + name + "\"}");
    }

    private static synchronized void stall(boolean now) {
        stalls = now;
        Words.class.notifyAll();
    }

    /** Called by the thread that commits. */
    private static synchronized void holdCommit() {
        if (!stalls) {
            return;
        }
        tell("stalled");
        while (stalls) {
            try {
                Words.class.wait();
            } catch (InterruptedException ended) {
                throw new IllegalStateException(ended);
            }
        }
    }

    /** The producer of a thread: Streams has handed over records and offsets when it commits. */
    private static final class Holding extends KafkaProducer<byte[], byte[]> {
        Holding(Map<String, Object> config) {
            super(config, new ByteArraySerializer(), new ByteArraySerializer());
        }

        @Override
        public void commitTransaction() {
            flush();
            holdCommit();
            super.commitTransaction();
        }
    }

    /** Kafka's clients, but for the producer. */
    private static final class Clients implements KafkaClientSupplier {
        @Override
        public Admin getAdmin(Map<String, Object> config) {
            return Admin.create(config);
        }

        @Override
        public Producer<byte[], byte[]> getProducer(Map<String, Object> config) {
            return new Holding(config);
        }

        @Override
        public Consumer<byte[], byte[]> getConsumer(Map<String, Object> config) {
            return new KafkaConsumer<>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        @Override
        public Consumer<byte[], byte[]> getRestoreConsumer(Map<String, Object> config) {
            return getConsumer(config);
        }

        @Override
        public Consumer<byte[], byte[]> getGlobalConsumer(Map<String, Object> config) {
            return getConsumer(config);
        }
    }

    private static Properties config(String bootstrap, String application, String folder) {
        Properties made = new Properties();
        made.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        made.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        made.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        made.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        made.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        made.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        // Every count is written, not only the last one before a commit.
        made.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        made.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        // The members of a process that was killed are given up soon.
        made.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6000);
        made.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 1000);
        return made;
    }

    private static StreamsBuilder topology(String lines, String copy, String counts) {
        StreamsBuilder made = new StreamsBuilder();
        KStream<String, String> source = made.stream(lines);
        source.to(copy);
        source.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.as("words"))
            .count(Materialized.as(Stores.inMemoryKeyValueStore("counts")))
            .toStream()
            .mapValues(count -> count.toString())
            .to(counts);
        return made;
    }

    public static void main(String[] words) throws Exception {
        KafkaStreams streams = new KafkaStreams(
            topology(words[2], words[3], words[4]).build(),
            config(words[0], words[1], words[5]), new Clients());
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                tell("running");
            }
        });
        streams.setUncaughtExceptionHandler(thrown -> {
            thrown.printStackTrace();
            tell("failed");
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order; (order = orders.readLine()) != null && !order.equals("close");) {
            stall(order.equals("stall"));
        }
        streams.close();
        tell("closed");
    }
}
