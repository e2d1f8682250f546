import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetCommitCallback;
import org.apache.kafka.common.TopicPartition;

/** Remembers what a consumer was told, as lines such as "assigned topic-0 topic-1". */
public final class Told implements ConsumerRebalanceListener, OffsetCommitCallback {
    private List<String> lines = new ArrayList<>();

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> places) {
        add("revoked", places);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> places) {
        add("assigned", places);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> places) {
        add("lost", places);
    }

    @Override
    public void onComplete(Map<TopicPartition, OffsetAndMetadata> offsets, Exception error) {
        add(error == null ? "committed" : error.getClass().getSimpleName(), offsets.keySet());
    }

    private synchronized void add(String what, Collection<TopicPartition> places) {
        lines.add(what + places.stream().map(each -> " " + each).collect(Collectors.joining()));
    }

    /** All fields of all records as JSON: to ask for them one by one takes long. */
    public static String json(ConsumerRecords<byte[], byte[]> records)
        throws JsonProcessingException {
        List<Object> rows = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> one : records) {
            List<Object> headers = new ArrayList<>();
            one.headers().forEach(each -> headers.add(Arrays.asList(each.key(), each.value())));
            rows.add(Arrays.asList(one.topic(), one.partition(), one.offset(), one.key(),
                one.value(), one.timestamp(), one.timestampType().id == 1, headers));
        }
        return new ObjectMapper().writeValueAsString(rows);
    }

    /** What offsetsForTimes is asked: Python's numbers would be Integers in it. */
    public static Map<TopicPartition, Long> when(TopicPartition place, long timestamp) {
        return Map.of(place, timestamp);
    }

    /** The same of producer ids. */
    public static List<Long> longs(long number) {
        return List.of(number);
    }

    /** The lines since the last time. */
    public synchronized String take() {
        String taken = String.join("\n", lines);
        lines.clear();
        return taken;
    }
}
