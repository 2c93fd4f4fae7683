import java.io.File;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.column.ParquetProperties.WriterVersion;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.example.data.simple.SimpleGroup;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.example.GroupWriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.schema.GroupType;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.MessageTypeParser;
import org.apache.parquet.schema.PrimitiveType;
import org.apache.parquet.schema.Type;

/** Writes files of parquet-mr's own writer with the schemas given as text: FOLDER PREFIX NAME MESSAGE, and more of the last two. */
class Messages {
  static final int ROWS = 24;

  public static void main(String[] arguments) throws Exception {
    for (int n = 2; n < arguments.length; n += 2) {
      MessageType schema = MessageTypeParser.parseMessageType(arguments[n + 1]);
      write(arguments[0] + "/" + arguments[1] + "-" + arguments[n], schema, WriterVersion.PARQUET_1_0, true, CompressionCodecName.GZIP);
      write(arguments[0] + "/" + arguments[1] + "-" + arguments[n] + "-v2", schema, WriterVersion.PARQUET_2_0, false, CompressionCodecName.UNCOMPRESSED);
    }
  }

  @SuppressWarnings("deprecation")
  static void write(String name, MessageType schema, WriterVersion version, boolean dictionary, CompressionCodecName codec) throws Exception {
    Configuration conf = new Configuration(false);
    GroupWriteSupport.setSchema(schema, conf);
    File file = new File(name + ".parquet");
    file.delete();
    try (ParquetWriter<Group> writer = new ParquetWriter<>(new Path(file.toURI()), new GroupWriteSupport(), codec, 1 << 20, 128, 64,
        dictionary, false, version, conf)) {
      for (int n = 0; n < ROWS; n++) {
        Group group = new SimpleGroup(schema);
        fill(group, schema, n);
        writer.write(group);
      }
    }
    new File(file.getParent(), "." + file.getName() + ".crc").delete();
  }

  static void fill(Group group, GroupType schema, int n) {
    for (int place = 0; place < schema.getFieldCount(); place++) {
      Type field = schema.getType(place);
      boolean repeated = field.isRepetition(Type.Repetition.REPEATED);
      if (field.isRepetition(Type.Repetition.OPTIONAL) && (n + place) % 5 == 0) continue;
      for (int k = 0; k < (repeated ? n % 3 : 1); k++) {
        if (field.isPrimitive()) add(group, place, field.asPrimitiveType(), n + k);
        else fill(group.addGroup(place), field.asGroupType(), n + k);
      }
    }
  }

  static void add(Group group, int place, PrimitiveType field, int n) {
    String name = field.getName();
    switch (field.getPrimitiveTypeName()) {
      case BOOLEAN: group.add(place, n % 2 == 0); break;
      case INT32: group.add(place, n % 100); break;
      case INT64: group.add(place, name.equals("id") ? (long) n : n * 1_000_000_007L); break;
      case FLOAT: group.add(place, n * 0.5f); break;
      case DOUBLE: group.add(place, n * 0.5); break;
      case INT96: group.add(place, bytes(ByteBuffer.allocate(12).order(ByteOrder.LITTLE_ENDIAN).putLong(n * 1_000_003_000L).putInt(2_440_588 + n * 100).array())); break;
      case FIXED_LEN_BYTE_ARRAY: {
        byte[] raw = new byte[field.getTypeLength()];
        raw[raw.length - 1] = (byte) n;
        group.add(place, bytes(raw));
        break;
      }
      default: group.add(place, bytes(value(name, n)));
    }
  }

  static byte[] value(String name, int n) {
    switch (name) {
      case "shape": case "place":
        return ByteBuffer.allocate(21).order(ByteOrder.LITTLE_ENDIAN).put((byte) 1).putInt(1).putDouble(n).putDouble(-n).array();
      case "metadata": return new byte[] {1, 0, 0};
      case "value": return new byte[] {12, (byte) n};
      case "dec": return ByteBuffer.allocate(8).putLong(n - 12).array();
      default: return ("t" + n % 7).getBytes();
    }
  }

  static Binary bytes(byte[] raw) {
    return Binary.fromConstantByteArray(Arrays.copyOf(raw, raw.length));
  }
}
