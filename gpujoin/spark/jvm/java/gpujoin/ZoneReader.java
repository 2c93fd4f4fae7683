package gpujoin;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.time.zone.ZoneOffsetTransition;
import java.time.zone.ZoneRules;
import java.util.Base64;
import java.util.List;
import java.util.zip.DeflaterOutputStream;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads the rules of time zones as Spark applies them. */
public final class ZoneReader {
    private static final int GREGORIAN_CYCLE = 400;

    /**
     * Gives the changes of a zone's offset from UTC as JSON, deflated, in base64.
     *
     * A zone with rules for all years to come has those of 400 years, after which the calendar repeats.
     */
    public String rules(String zone) throws IOException {
        ZoneRules rules = DateTimeUtils.getZoneId(zone).getRules();
        long start = Long.MAX_VALUE;
        long end = Long.MAX_VALUE;
        List listed = rules.getTransitions();
        if (!rules.getTransitionRules().isEmpty() && !listed.isEmpty()) {
            int year = ((ZoneOffsetTransition) listed.get(listed.size() - 1)).getDateTimeAfter().getYear() + 2;
            start = beginning(year);
            end = beginning(year + GREGORIAN_CYCLE);
        }
        StringBuilder transitions = new StringBuilder();
        StringBuilder offsets = new StringBuilder();
        offsets.append(rules.getOffset(Instant.MIN).getTotalSeconds());
        ZoneOffsetTransition change = rules.nextTransition(Instant.MIN);
        while (change != null && change.toEpochSecond() < end) {
            if (transitions.length() > 0) {
                transitions.append(',');
            }
            transitions.append(change.toEpochSecond());
            offsets.append(',').append(change.getOffsetAfter().getTotalSeconds());
            change = rules.nextTransition(change.getInstant());
        }
        String text = "{\"transitions\":[" + transitions + "],\"offsets\":[" + offsets + "],\"repeats_from\":"
            + (start == Long.MAX_VALUE ? "null" : String.valueOf(start)) + "}";
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DeflaterOutputStream deflater = new DeflaterOutputStream(bytes);
        deflater.write(text.getBytes(StandardCharsets.UTF_8));
        deflater.close();
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }

    /** Whether date_trunc to months keeps the offset where midnight comes twice, as Spark does since 4.3. */
    public boolean truncationKeepsOffset() {
        int month = DateTimeUtils.parseTruncLevel(UTF8String.fromString("MONTH"));
        // Of October 1916, which began twice in Berlin: at 22:00 UTC and an hour later.
        long moment = -1680397200000000L;
        return DateTimeUtils.truncTimestamp(moment, month, ZoneId.of("Europe/Berlin")) == -1680483600000000L;
    }

    private static long beginning(int year) {
        return LocalDate.of(year, 1, 1).atStartOfDay().toEpochSecond(ZoneOffset.UTC);
    }
}
