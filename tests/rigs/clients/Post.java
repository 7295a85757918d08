import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

/** Sends requests as a JDK's client does by default: a URL, a path and a body; prints status, method and answer. */
class Post {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        byte[] body = arguments[2].getBytes("UTF-8");
        BodyPublisher sized = BodyPublishers.ofByteArray(body);
        BodyPublisher chunked = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body));
        for (BodyPublisher publisher : new BodyPublisher[] {sized, chunked, sized, chunked}) {
            URI uri = URI.create(arguments[0] + arguments[1]);
            send(client, HttpRequest.newBuilder(uri).header("Content-Type", "application/json").POST(publisher));
        }
        send(client, HttpRequest.newBuilder(URI.create(arguments[0] + "/health/")));
    }

    private static void send(HttpClient client, HttpRequest.Builder builder) throws Exception {
        HttpRequest request = builder.build();
        var answer = client.send(request, BodyHandlers.ofString());
        System.out.println(answer.statusCode() + " " + request.method() + " " + answer.body());
    }
}
