import forge.external.spring.ForgeAutoConfiguration;
import java.nio.file.Files;
import org.apache.catalina.startup.Tomcat;
import org.springframework.context.annotation.Bean;
import org.springframework.web.context.support.AnnotationConfigWebApplicationContext;
import org.springframework.web.servlet.DispatcherServlet;
import org.springframework.web.servlet.mvc.method.annotation.RequestMappingHandlerAdapter;

/**
 * Spring MVC application on an embedded Tomcat, without Spring Boot, which would do what this class does. Usage:
 * {@code BillingApplication [PORT]}.
 */
public class BillingApplication {
    @Bean
    Billing billing() { return new Billing(); }

    @Bean
    RequestMappingHandlerAdapter handlerAdapter() { return new RequestMappingHandlerAdapter(); }

    public static void main(String[] arguments) throws Exception {
        int port = arguments.length == 0 ? 8788 : Integer.parseInt(arguments[0]);
        System.out.println(serve(port, BillingApplication.class, ForgeAutoConfiguration.class));
    }

    /** Serves at 127.0.0.1 until the JVM ends; port 0 takes a free one. Returns the address. */
    public static String serve(int port, Class<?>... configuration) throws Exception {
        var context = new AnnotationConfigWebApplicationContext();
        context.register(configuration);
        var tomcat = new Tomcat();
        tomcat.setBaseDir(Files.createTempDirectory("tomcat").toString());
        tomcat.setPort(port);
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        var root = tomcat.addContext("", null);
        Tomcat.addServlet(root, "spring", new DispatcherServlet(context)).setLoadOnStartup(1);
        root.addServletMappingDecoded("/", "spring");
        tomcat.start();
        return "http://127.0.0.1:" + tomcat.getConnector().getLocalPort();
    }
}
