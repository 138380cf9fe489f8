import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.DecoderFactory;

/**
 * Reads what one schema wrote as another, without logical types. Each line of stdin is {"writer", "reader": schemas as
 * text, "data": [base64, ...]}; each line of stdout {"error": text} if a schema is refused, or {"values": [{"value"} or
 * {"error"}, ...]}. A value is {"branch", "value"} for a union, [[name, value], ...] for a record or map; a long is text,
 * floats are their bits as text, bytes base64.
 */
public class AvroReferee {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      System.out.write(JSON.writeValueAsBytes(answer(JSON.readTree(line))));
      System.out.write('\n');
      System.out.flush();
    }
  }

  private static JsonNode answer(JsonNode question) {
    ObjectNode answer = JSON.createObjectNode();
    GenericDatumReader<Object> reader;
    Schema expected;
    try {
      Schema writer = new Schema.Parser().parse(question.get("writer").asText());
      expected = new Schema.Parser().parse(question.get("reader").asText());
      reader = new GenericDatumReader<>(writer, expected, new GenericData());
    } catch (RuntimeException error) {
      return answer.put("error", String.valueOf(error));
    }
    ArrayNode values = answer.putArray("values");
    for (JsonNode data : question.get("data")) {
      ObjectNode one = values.addObject();
      try {
        byte[] bytes = Base64.getDecoder().decode(data.asText());
        Object found = reader.read(null, DecoderFactory.get().binaryDecoder(bytes, null));
        one.set("value", shown(expected, found));
      } catch (Exception error) {
        one.put("error", String.valueOf(error));
      }
    }
    return answer;
  }

  private static JsonNode shown(Schema schema, Object value) {
    switch (schema.getType()) {
      case UNION: {
        int branch = GenericData.get().resolveUnion(schema, value);
        ObjectNode shown = JSON.createObjectNode().put("branch", branch);
        shown.set("value", shown(schema.getTypes().get(branch), value));
        return shown;
      }
      case RECORD: {
        ArrayNode shown = JSON.createArrayNode();
        for (Schema.Field field : schema.getFields()) {
          pair(shown, field.name(), shown(field.schema(), ((IndexedRecord) value).get(field.pos())));
        }
        return shown;
      }
      case MAP: {
        ArrayNode shown = JSON.createArrayNode();
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
          pair(shown, entry.getKey().toString(), shown(schema.getValueType(), entry.getValue()));
        }
        return shown;
      }
      case ARRAY: {
        ArrayNode shown = JSON.createArrayNode();
        for (Object item : (List<?>) value) {
          shown.add(shown(schema.getElementType(), item));
        }
        return shown;
      }
      case FLOAT:
        return text(Integer.toUnsignedString(Float.floatToRawIntBits((Float) value)));
      case DOUBLE:
        return text(Long.toUnsignedString(Double.doubleToRawLongBits((Double) value)));
      case BYTES: {
        ByteBuffer buffer = ((ByteBuffer) value).duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return text(Base64.getEncoder().encodeToString(bytes));
      }
      case FIXED:
        return text(Base64.getEncoder().encodeToString(((GenericFixed) value).bytes()));
      case BOOLEAN:
        return JSON.getNodeFactory().booleanNode((Boolean) value);
      case NULL:
        return JSON.nullNode();
      default:
        return text(value.toString());
    }
  }

  private static void pair(ArrayNode shown, String name, JsonNode value) {
    shown.addArray().add(name).add(value);
  }

  private static JsonNode text(String text) {
    return JSON.getNodeFactory().textNode(text);
  }
}
