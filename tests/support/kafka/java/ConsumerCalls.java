import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.TimestampType;

/** What a Java consumer sees of offsets, times, isolation and rebalances, as JSON. */
public final class ConsumerCalls {
    private ConsumerCalls() {
    }

    public static void main(String[] words) throws Exception {
        Clients.call(ConsumerCalls.class, words);
    }

    /** Commits, sync and async, with metadata; seeks; times; ends at both isolation levels. */
    static Map<String, Object> offsets(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        Map<String, Object> seen = new HashMap<>();
        try (KafkaProducer<String, String> writer = Clients.transactional(words[0], words[2])) {
            writer.beginTransaction();
            for (int i = 0; i < 10; i++) {
                writer.send(new ProducerRecord<>(
                    words[1], 0, 1_700_000_000_000L + 1000 * i, "k", "" + i));
            }
            writer.commitTransaction();
            writer.beginTransaction();
            Clients.send(writer, words[1], 0, "open");
            for (String isolation : List.of("read_committed", "read_uncommitted")) {
                try (KafkaConsumer<String, String> reader = Clients.consumer(
                        words[0], words[2], "isolation.level", isolation)) {
                    reader.assign(List.of(place));
                    seen.put(isolation + " end", reader.endOffsets(List.of(place)).get(place));
                    reader.seekToEnd(List.of(place));
                    seen.put(isolation + " position", reader.position(place));
                }
            }
            writer.abortTransaction();
        }
        try (KafkaConsumer<String, String> reader = Clients.consumer(
                words[0], words[2], "isolation.level", "read_committed")) {
            reader.assign(List.of(place));
            seen.put("beginning", reader.beginningOffsets(List.of(place)).get(place));
            Map<TopicPartition, OffsetAndTimestamp> found =
                reader.offsetsForTimes(Map.of(place, 1_700_000_003_500L));
            seen.put("time", found.get(place).offset() + " " + found.get(place).timestamp());
            seen.put("after the last", String.valueOf(
                reader.offsetsForTimes(Map.of(place, 4_000_000_000_000L)).get(place)));
            reader.commitSync(Map.of(place, new OffsetAndMetadata(3, "three")));
            OffsetAndMetadata sync = reader.committed(Set.of(place)).get(place);
            seen.put("sync", sync.offset() + " " + sync.metadata());
            AtomicReference<String> told = new AtomicReference<>();
            reader.commitAsync(Map.of(place, new OffsetAndMetadata(4, "four")), (offsets, error) ->
                told.set(error == null ? "none" : error.getClass().getSimpleName()));
            Clients.await("the commit's callback", () -> {
                reader.poll(Clients.SHORT);
                return told.get() != null;
            });
            OffsetAndMetadata async = reader.committed(Set.of(place)).get(place);
            seen.put("async", told.get() + " " + async.offset() + " " + async.metadata());
            reader.seek(place, 8);
            seen.put("from 8", Clients.poll(reader, 2));
            reader.pause(List.of(place));
            reader.seek(place, 0);
            seen.put("paused", reader.poll(Clients.SHORT).count());
            reader.resume(List.of(place));
            seen.put("resumed", Clients.poll(reader, 1).get(0));
        }
        return seen;
    }

    /** Keys, headers, times and the timestamp type come back; nulls too. */
    static Map<String, Object> fields(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        try (KafkaProducer<String, String> writer = Clients.producer(
                words[0], "compression.type", words[2])) {
            ProducerRecord<String, String> record =
                new ProducerRecord<>(words[1], 0, 1_700_000_000_123L, "key", "value");
            record.headers().add("h", new byte[] {1, 2}).add("h", null);
            writer.send(record).get();
            writer.send(new ProducerRecord<>(words[1], 0, null, null)).get();
        }
        try (KafkaConsumer<String, String> reader = Clients.consumer(words[0], null)) {
            reader.assign(List.of(place));
            reader.seekToBeginning(List.of(place));
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            Clients.await("two records", () -> {
                reader.poll(Clients.SHORT).forEach(records::add);
                return records.size() == 2;
            });
            ConsumerRecord<String, String> first = records.get(0);
            List<String> headers = new ArrayList<>();
            first.headers().forEach(each ->
                headers.add(each.key() + "=" + java.util.Arrays.toString(each.value())));
            return Clients.seen(
                "first", first.key() + " " + first.value() + " " + first.timestamp(),
                "create time", first.timestampType() == TimestampType.CREATE_TIME,
                "headers", headers,
                "second", records.get(1).key() + " " + records.get(1).value());
        }
    }

    /** Remembers what a member was given and what it lost. */
    private static final class Told implements ConsumerRebalanceListener {
        final List<String> events = new ArrayList<>();

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            events.add("revoked " + Clients.numbers(places));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            events.add("assigned " + Clients.numbers(places));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> places) {
            events.add("lost " + Clients.numbers(places));
        }
    }

    /** A member joins, and leaves, a group of one: what the first is told, by assignor. */
    static Map<String, Object> rebalance(String[] words) throws Exception {
        String[] strategy = {"partition.assignment.strategy",
            "org.apache.kafka.clients.consumer." + words[3]};
        Told told = new Told();
        try (KafkaConsumer<String, String> one =
                Clients.consumer(words[0], words[2], (Object[]) strategy)) {
            one.subscribe(List.of(words[1]), told);
            Clients.await("all four", () -> {
                one.poll(Clients.SHORT);
                return one.assignment().size() == 4;
            });
            Set<TopicPartition> kept;
            KafkaConsumer<String, String> two =
                Clients.consumer(words[0], words[2], (Object[]) strategy);
            two.subscribe(List.of(words[1]));
            Clients.await("two each", () -> {
                one.poll(Clients.SHORT);
                two.poll(Clients.SHORT);
                return one.assignment().size() == 2 && two.assignment().size() == 2;
            });
            kept = one.assignment();
            boolean apart = two.assignment().stream().noneMatch(kept::contains);
            two.close();
            Clients.await("all four again", () -> {
                one.poll(Clients.SHORT);
                return one.assignment().size() == 4;
            });
            return Clients.seen("apart", apart, "kept", Clients.numbers(kept),
                "told", List.copyOf(told.events));
        }
    }

    /** A static member comes back, and its older self is fenced. */
    static Map<String, Object> staticMember(String[] words) throws Exception {
        Told told = new Told();
        KafkaConsumer<String, String> older = null;
        try (KafkaConsumer<String, String> one =
                Clients.consumer(words[0], words[2], "group.instance.id", "one")) {
            older = Clients.consumer(words[0], words[2], "group.instance.id", "two");
            KafkaConsumer<String, String> old = older;
            one.subscribe(List.of(words[1]), told);
            old.subscribe(List.of(words[1]));
            Clients.await("two each", () -> {
                one.poll(Clients.SHORT);
                old.poll(Clients.SHORT);
                return one.assignment().size() == 2 && old.assignment().size() == 2;
            });
            Set<TopicPartition> before = Set.copyOf(old.assignment());
            int generation = one.groupMetadata().generationId();
            told.events.clear();
            try (KafkaConsumer<String, String> back =
                    Clients.consumer(words[0], words[2], "group.instance.id", "two")) {
                back.subscribe(List.of(words[1]));
                Clients.await("the same partitions", () -> {
                    one.poll(Clients.SHORT);
                    back.poll(Clients.SHORT);
                    return back.assignment().equals(before);
                });
                // With offsets: without any, which it may not have yet, it asks nobody.
                TopicPartition place = before.iterator().next();
                String fenced = Clients.error(
                    () -> old.commitSync(Map.of(place, new OffsetAndMetadata(0))));
                return Clients.seen(
                    "generations", back.groupMetadata().generationId() - generation,
                    "told", List.copyOf(told.events),
                    "fenced", fenced);
            }
        } finally {
            if (older != null) {
                older.close(java.time.Duration.ZERO);
            }
        }
    }

    /** A commit of a member that the group threw out because it did not poll. */
    static Map<String, Object> thrownOut(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        try (KafkaConsumer<String, String> slow = Clients.consumer(
                words[0], words[2], "max.poll.interval.ms", 1500)) {
            slow.subscribe(List.of(words[1]));
            Clients.await("the assignment", () -> {
                slow.poll(Clients.SHORT);
                return !slow.assignment().isEmpty();
            });
            Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(place, new OffsetAndMetadata(1));
            String before = Clients.error(() -> slow.commitSync(offsets));
            try (KafkaConsumer<String, String> other = Clients.consumer(words[0], words[2])) {
                other.subscribe(List.of(words[1]));
                Clients.await("the other to own it", () -> {
                    other.poll(Clients.SHORT);
                    return other.assignment().contains(place);
                });
                String after = Clients.error(() -> slow.commitSync(offsets));
                return Clients.seen("before", before, "after", after,
                    "committed", other.committed(Set.of(place)).get(place).offset());
            }
        }
    }

    /** Batches larger than all limits still come; a fetch that waits for more gives what there is. */
    static Map<String, Object> limits(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        try (KafkaProducer<String, String> writer = Clients.producer(words[0])) {
            for (int i = 0; i < 3; i++) {
                Clients.send(writer, words[1], 0, i + "x".repeat(200_000));
            }
        }
        List<Object> sizes = new ArrayList<>();
        try (KafkaConsumer<String, String> reader = Clients.consumer(words[0], null,
                "max.partition.fetch.bytes", 1000, "fetch.max.bytes", 1000)) {
            reader.assign(List.of(place));
            reader.seekToBeginning(List.of(place));
            Clients.poll(reader, 3).forEach(value -> sizes.add(value.length()));
        }
        try (KafkaConsumer<String, String> reader = Clients.consumer(words[0], null,
                "fetch.min.bytes", 10_000_000, "fetch.max.wait.ms", 300)) {
            reader.assign(List.of(place));
            reader.seekToBeginning(List.of(place));
            return Clients.seen("sizes", sizes, "waited for", Clients.poll(reader, 3).size());
        }
    }

    /** Where a consumer without a position starts, and what it says when it may not choose. */
    static Map<String, Object> resets(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        long hour = java.time.Duration.ofHours(1).toMillis();
        try (KafkaProducer<String, String> writer = Clients.producer(words[0])) {
            long now = System.currentTimeMillis();
            for (long time : new long[] {now - 3 * hour, now - 2 * hour, now}) {
                writer.send(new ProducerRecord<>(words[1], 0, time, "k", "v")).get();
            }
        }
        Map<String, Object> seen = new HashMap<>();
        for (String policy : List.of("earliest", "latest", "by_duration:PT2H30M", "none")) {
            try (KafkaConsumer<String, String> reader = Clients.consumer(
                    words[0], null, "auto.offset.reset", policy)) {
                reader.assign(List.of(place));
                seen.put(policy, Clients.error(() -> seen.put("at", reader.position(place))));
                seen.put(policy, seen.get(policy).equals("none")
                    ? seen.remove("at") : seen.get(policy));
                if (policy.equals("none")) {
                    reader.seek(place, 77);
                    seen.put("out of range", Clients.error(() ->
                        Clients.await("an error", () -> reader.poll(Clients.SHORT).count() > 0)));
                } else if (policy.equals("earliest")) {
                    reader.seek(place, 77);
                    seen.put("read again from the start", Clients.poll(reader, 3).size());
                }
            }
        }
        return seen;
    }

    /** A topic whose times are the broker's. */
    static Map<String, Object> appendTime(String[] words) throws Exception {
        TopicPartition place = new TopicPartition(words[1], 0);
        long before = System.currentTimeMillis();
        long acknowledged;
        try (KafkaProducer<String, String> writer = Clients.producer(
                words[0], "compression.type", "lz4")) {
            acknowledged = writer.send(new ProducerRecord<>(words[1], 0, 1_000L, "k", "v"))
                .get().timestamp();
        }
        long after = System.currentTimeMillis();
        try (KafkaConsumer<String, String> reader = Clients.consumer(words[0], null)) {
            reader.assign(List.of(place));
            reader.seekToBeginning(List.of(place));
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            Clients.await("the record", () -> {
                reader.poll(Clients.SHORT).forEach(records::add);
                return records.size() == 1;
            });
            ConsumerRecord<String, String> record = records.get(0);
            return Clients.seen(
                "type", record.timestampType().toString(),
                "acknowledged", before <= acknowledged && acknowledged <= after,
                "the same", record.timestamp() == acknowledged,
                "found", reader.offsetsForTimes(Map.of(place, before)).get(place).offset());
        }
    }
}
