import forge.external.*;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;

/** Invoices in memory. Each tenant sees its own. Usage: {@code Billing [PORT]}. */
public final class Billing {
    record CreateInvoiceInput(String title, long amountCents) {}
    record Invoice(String id, String tenantId, String title, long amountCents, String createdBy) {}

    private static final List<Invoice> INVOICES = new CopyOnWriteArrayList<>();

    private Billing() {}

    static Invoice createInvoice(CreateInvoiceInput input, ForgeContext context) {
        if (input.title() == null || input.title().isBlank()) {
            throw new ForgeException("INVOICE_TITLE_MISSING", "an invoice needs a title");
        }
        synchronized (INVOICES) {
            String id = "inv_" + (INVOICES.size() + 1);
            var invoice = new Invoice(id, context.tenantId(), input.title(), input.amountCents(), context.userId());
            INVOICES.add(invoice);
            return invoice;
        }
    }

    static Map<String, List<Invoice>> listInvoices(EmptyInput input, ForgeContext context) {
        String tenant = String.valueOf(context.tenantId());
        return Map.of("invoices", INVOICES.stream().filter(it -> tenant.equals(String.valueOf(it.tenantId()))).toList());
    }

    public static void main(String[] arguments) throws IOException {
        ForgeRegistry app = Forge.service("billing",
            Forge.framework("java/jdk-http"),
            Forge.baseUrl("http://127.0.0.1:8788"));

        app.command("createInvoice",
            Forge.handle(CreateInvoiceInput.class, Billing::createInvoice),
            Forge.policy("billing.manage"),
            Forge.tenantScoped(true),
            Forge.needsApproval(true));

        app.query("listInvoices",
            Forge.handle(EmptyInput.class, Billing::listInvoices),
            Forge.policy("billing.manage"),
            Forge.tenantScoped(true),
            Forge.readOnly());

        ForgeServer server = app.serve(arguments.length == 0 ? 8788 : Integer.parseInt(arguments[0]));
        System.out.println("billing serves at " + server.url());
    }
}
