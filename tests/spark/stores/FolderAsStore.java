package gpujoin.tests;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * Stands for Hadoop's client of a store on Spark's side: a folder's subfolders are the buckets.
 *
 * The folder is the system property gpujoin.tests.stores. Classes with the clients' names extend this one.
 */
public class FolderAsStore extends RawLocalFileSystem {
    private final String root = System.getProperty("gpujoin.tests.stores");
    private URI uri;

    @Override
    public void initialize(URI name, Configuration configuration) throws IOException {
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
        super.initialize(name, configuration);
    }

    @Override
    public URI getUri() {
        return uri == null ? super.getUri() : uri; // the constructor asks
    }

    @Override
    public Path getWorkingDirectory() {
        return new Path(getUri() + "/");
    }

    private String bucket() {
        return root + "/" + uri.getHost();
    }

    @Override
    public File pathToFile(Path path) {
        return new File(bucket() + path.toUri().getPath());
    }

    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
        File file = pathToFile(path);
        if (!file.exists()) {
            throw new java.io.FileNotFoundException(path.toString());
        }
        return new FileStatus(
            file.length(), file.isDirectory(), 1, 1L << 25, file.lastModified(), path.makeQualified(uri, new Path(uri + "/")));
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        File folder = pathToFile(path);
        if (folder.isFile()) {
            return new FileStatus[] {getFileStatus(path)};
        }
        String[] names = folder.list();
        if (names == null) {
            throw new java.io.FileNotFoundException(path.toString());
        }
        java.util.Arrays.sort(names);
        FileStatus[] all = new FileStatus[names.length];
        for (int i = 0; i < names.length; i++) {
            all[i] = getFileStatus(new Path(path, names[i]));
        }
        return all;
    }
}
