import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.Duration;
import com.google.protobuf.DurationProto;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import com.google.protobuf.Timestamp;
import com.google.protobuf.TimestampProto;
import com.google.protobuf.WrappersProto;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * What protobuf-java's DynamicMessage says that messages are, read and written by the rules of
 * Spark's ProtobufDeserializer and ProtobufSerializer.
 *
 * <p>The first line of stdin is a FileDescriptorSet, the second the name of a message, each other
 * one a value, in base64. The answer to a value is "-" where it is refused, else its text and the
 * bytes that it is written as.
 */
public final class SparkProtobuf {
  private SparkProtobuf() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    FileDescriptorProto file =
        FileDescriptorSet.parseFrom(Base64.getDecoder().decode(in.readLine())).getFile(0);
    FileDescriptor[] imports = {
      TimestampProto.getDescriptor(), DurationProto.getDescriptor(), WrappersProto.getDescriptor()
    };
    Descriptor type = FileDescriptor.buildFrom(file, imports).findMessageTypeByName(in.readLine());
    Set<Integer> known =
        type.getFields().stream().map(FieldDescriptor::getNumber).collect(Collectors.toSet());
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      System.out.println(answer(type, known, Base64.getDecoder().decode(line)));
    }
  }

  private static String answer(Descriptor type, Set<Integer> known, byte[] value) {
    String text;
    DynamicMessage message;
    try {
      message = DynamicMessage.parseFrom(type, value);
      if (message.getUnknownFields().asMap().keySet().stream().anyMatch(known::contains)) {
        return "-";
      }
      text = struct(message);
    } catch (Exception refused) {
      return "-";
    }
    Base64.Encoder base64 = Base64.getEncoder();
    byte[] written = written(message).toByteArray();
    return base64.encodeToString(text.getBytes(StandardCharsets.UTF_8))
        + " "
        + base64.encodeToString(written);
  }

  // from_protobuf -------------------------------------------------------------------------------

  private static Object fieldValue(Message message, FieldDescriptor field) {
    boolean there = field.isRepeated() || message.hasField(field) || field.hasDefaultValue();
    return there ? message.getField(field) : null;
  }

  private static String struct(Message message) {
    return message.getDescriptorForType().getFields().stream()
        .map(field -> field.getName() + ":" + text(field, fieldValue(message, field)))
        .collect(Collectors.joining(",", "{", "}"));
  }

  private static String text(FieldDescriptor field, Object value) {
    if (value == null) {
      return "null";
    }
    if (value instanceof List<?> list) {
      return list.stream().map(each -> single(field, each)).collect(Collectors.joining(",", "[", "]"));
    }
    return single(field, value);
  }

  private static String single(FieldDescriptor field, Object value) {
    if (value instanceof Message message) {
      if (isTime(message.getDescriptorForType())) {
        return String.valueOf(micros(message));
      }
      if (field.isMapField()) {
        Descriptor entry = message.getDescriptorForType();
        FieldDescriptor key = entry.findFieldByName("key");
        FieldDescriptor of = entry.findFieldByName("value");
        return single(key, message.getField(key)) + "=" + single(of, message.getField(of));
      }
      return struct(message);
    }
    if (value instanceof ByteString bytes) {
      return "b" + HexFormat.of().formatHex(bytes.toByteArray());
    }
    if (value instanceof EnumValueDescriptor name) {
      return "s" + HexFormat.of().formatHex(name.getName().getBytes(StandardCharsets.UTF_8));
    }
    if (value instanceof String string) {
      return "s" + HexFormat.of().formatHex(string.getBytes(StandardCharsets.UTF_8));
    }
    if (value instanceof Float number) {
      return "f" + Integer.toHexString(Float.floatToRawIntBits(number));
    }
    if (value instanceof Double number) {
      return "f" + Long.toHexString(Double.doubleToRawLongBits(number));
    }
    return value.toString();
  }

  private static boolean isTime(Descriptor type) {
    return type.getName().equals("Timestamp") || type.getName().equals("Duration");
  }

  private static long micros(Message time) {
    Descriptor type = time.getDescriptorForType();
    long seconds = (Long) time.getField(type.findFieldByName("seconds"));
    int nanos = (Integer) time.getField(type.findFieldByName("nanos"));
    return Math.multiplyExact(seconds * 1000, 1000L) + nanos / 1000;
  }

  // to_protobuf ---------------------------------------------------------------------------------

  private static DynamicMessage written(Message message) {
    DynamicMessage.Builder made = DynamicMessage.newBuilder(message.getDescriptorForType());
    for (FieldDescriptor field : message.getDescriptorForType().getFields()) {
      Object value = fieldValue(message, field);
      if (value instanceof List<?> list) {
        List<Object> elements = new ArrayList<>();
        list.forEach(each -> elements.add(element(field, each)));
        made.setField(field, elements);
      } else if (value != null) {
        made.setField(field, element(field, value));
      }
    }
    return made.build();
  }

  private static Object element(FieldDescriptor field, Object value) {
    if (value instanceof ByteString bytes) {
      return bytes.toByteArray();
    }
    if (!(value instanceof Message message)) {
      return value;
    }
    Descriptor type = message.getDescriptorForType();
    if (isTime(type)) {
      long millis = Math.floorDiv(micros(message), 1000L);
      int nanos = (int) (millis % 1000 * 1000000);
      return type.getName().equals("Timestamp")
          ? Timestamp.newBuilder().setSeconds(millis / 1000).setNanos(nanos).build()
          : Duration.newBuilder().setSeconds(millis / 1000).setNanos(nanos).build();
    }
    if (!field.isMapField()) {
      return written(message);
    }
    DynamicMessage.Builder entry = DynamicMessage.newBuilder(type);
    for (FieldDescriptor part : type.getFields()) {
      entry.setField(part, element(part, message.getField(part)));
    }
    return entry.build();
  }
}
