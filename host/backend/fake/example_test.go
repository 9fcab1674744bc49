package fake_test

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Program a plan, connect, and make the next message fail.
func Example() {
	p, err := plan.Parse(`
global
  masquerade-mark 0x4000
service shop/web
  port http 10.96.0.10:80/TCP ClusterIP
    forward
      10.244.1.1:8080 weight 3
      10.244.1.2:8080 weight 0
`)
	if err != nil {
		panic(err)
	}
	kernel := fake.NewKernel(fake.Options{})
	backend := fake.Open(kernel)
	report, err := backend.Apply(context.Background(), p, nil)
	fmt.Println(report.Messages, "messages,", err)

	r := kernel.Connect(fake.Packet{
		From: netip.MustParseAddrPort("10.244.9.9:40000"), To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: model.TCP,
	})
	fmt.Println(r.Verdict, r.Endpoint)

	kernel.Inject(fake.Fault{At: 1, Err: syscall.ENOBUFS})
	_, err = backend.Apply(context.Background(), &plan.Plan{}, nil)
	fmt.Println(err)
	// Output:
	// 2 messages, <nil>
	// forward 10.244.1.1:8080
	// fake: set the global part: no buffer space available
}
