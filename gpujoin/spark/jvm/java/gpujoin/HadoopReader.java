package gpujoin;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.TreeSet;
import org.apache.hadoop.conf.ConfigRedactor;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.UserGroupInformation;

/** Reads who Hadoop's clients are in this thread, and what they were told beyond Hadoop's defaults, in one call. */
public final class HadoopReader {
    private static final List DEFAULTS =
        Arrays.asList("core-default.xml", "hdfs-default.xml", "Set by Spark to default values");

    /**
     * Gives the user's name, the name of whoever acts for the user (else nothing), and settings, with NULs in between.
     *
     * Settings are those that begin with one of some prefixes, which commas separate. Each is "name=value", or "name"
     * where Hadoop deems the value a secret.
     */
    public String client(Configuration configuration, String prefixes) throws IOException {
        UserGroupInformation user = UserGroupInformation.getCurrentUser();
        UserGroupInformation real = user.getRealUser();
        StringBuilder text = new StringBuilder(user.getUserName());
        text.append('\0').append(real == null ? "" : real.getUserName());
        ConfigRedactor redactor = new ConfigRedactor(configuration);
        TreeSet names = new TreeSet();
        for (Object prefix : prefixes.split(",")) {
            for (Object name : configuration.getPropsWithPrefix((String) prefix).keySet()) {
                names.add((String) prefix + (String) name);
            }
        }
        for (Object name : names) {
            String[] sources = configuration.getPropertySources((String) name);
            if (sources != null && DEFAULTS.containsAll(Arrays.asList(sources))) {
                continue;
            }
            String value = configuration.get((String) name);
            if (value == null) {
                continue;
            }
            text.append('\0').append((String) name);
            if (value.equals(redactor.redact((String) name, value))) {
                text.append('=').append(value);
            }
        }
        return text.toString();
    }
}
