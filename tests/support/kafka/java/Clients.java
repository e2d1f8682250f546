import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** How our programs make Kafka's clients, and what they tell of what these did. */
final class Clients {
    static final Duration TIMEOUT = Duration.ofSeconds(60);
    static final Duration SHORT = Duration.ofMillis(50);
    private static final ObjectMapper JSON = new ObjectMapper();

    /** What may throw anything. */
    interface Action {
        void run() throws Exception;
    }

    private Clients() {
    }

    /** Properties from names and values in turn. */
    static Properties properties(String bootstrap, Object... settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < settings.length; i += 2) {
            properties.put(settings[i], String.valueOf(settings[i + 1]));
        }
        return properties;
    }

    static Admin admin(String bootstrap) {
        return Admin.create(properties(bootstrap));
    }

    static KafkaProducer<String, String> producer(String bootstrap, Object... settings) {
        Properties properties = properties(bootstrap, settings);
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    /** A producer that has called initTransactions. */
    static KafkaProducer<String, String> transactional(
        String bootstrap, String transactionalId, Object... settings
    ) {
        Properties properties = properties(bootstrap, settings);
        properties.put("transactional.id", transactionalId);
        KafkaProducer<String, String> made =
            new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    /** A consumer that starts at the earliest offset and does not commit by itself. */
    static KafkaConsumer<String, String> consumer(
        String bootstrap, String group, Object... settings
    ) {
        Properties properties = properties(bootstrap);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("heartbeat.interval.ms", "300");
        if (group != null) {
            properties.put("group.id", group);
        }
        for (int i = 0; i < settings.length; i += 2) {
            properties.put(settings[i], String.valueOf(settings[i + 1]));
        }
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    /** Send one record to a partition and wait; its offset. */
    static long send(
        KafkaProducer<String, String> producer, String topic, int partition, String value
    ) throws Exception {
        return producer.send(new ProducerRecord<>(topic, partition, value, value)).get().offset();
    }

    /** The name of the error that an action ends with, a future's own one, or "none". */
    static String error(Action action) {
        try {
            action.run();
            return "none";
        } catch (ExecutionException wrapped) {
            return wrapped.getCause().getClass().getSimpleName();
        } catch (Exception thrown) {
            Throwable cause = thrown.getCause();
            String name = thrown.getClass().getSimpleName();
            return cause == null ? name : name + "/" + cause.getClass().getSimpleName();
        }
    }

    /** Return when the condition holds; an error naming `what` after 60 s. */
    static void await(String what, BooleanSupplier condition) throws InterruptedException {
        long end = System.nanoTime() + TIMEOUT.toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("waited 60 s for " + what);
            }
            Thread.sleep(20);
        }
    }

    /** Poll until this many records came; their values. */
    static List<String> poll(KafkaConsumer<String, String> consumer, int count) {
        List<String> values = new ArrayList<>();
        long end = System.nanoTime() + TIMEOUT.toNanos();
        while (values.size() < count && System.nanoTime() < end) {
            for (ConsumerRecord<String, String> record : consumer.poll(SHORT)) {
                values.add(record.value());
            }
        }
        return values;
    }

    /** Every value of a partition that the isolation level lets one read now. */
    static List<String> readAll(String bootstrap, TopicPartition place, String isolation) {
        try (KafkaConsumer<String, String> reader =
                consumer(bootstrap, null, "isolation.level", isolation)) {
            reader.assign(List.of(place));
            reader.seekToBeginning(List.of(place));
            long end = reader.endOffsets(List.of(place)).get(place);
            List<String> values = new ArrayList<>();
            while (reader.position(place) < end) {
                reader.poll(SHORT).forEach(record -> values.add(record.value()));
            }
            return values;
        }
    }

    /** Partition numbers, sorted. */
    static List<Integer> numbers(Collection<TopicPartition> places) {
        return places.stream().map(TopicPartition::partition).sorted().toList();
    }

    /** A map of what was seen, from names and values in turn. */
    static Map<String, Object> seen(Object... pairs) {
        Map<String, Object> map = new TreeMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put((String) pairs[i], pairs[i + 1]);
        }
        return map;
    }

    /** Print one line of JSON. */
    static synchronized void print(Object value) throws Exception {
        System.out.println(JSON.writeValueAsString(value));
    }

    /** Call the static method of a class that is named first, with the other words. */
    static void call(Class<?> scenarios, String[] words) throws Exception {
        String[] rest = new String[words.length - 1];
        System.arraycopy(words, 1, rest, 0, rest.length);
        try {
            print(scenarios.getDeclaredMethod(words[0], String[].class)
                .invoke(null, (Object) rest));
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            throw (Exception) thrown.getCause();
        }
    }
}
