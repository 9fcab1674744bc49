package plan_test

import (
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

const (
	before = `
global
  masquerade-mark 0x4000
service shop/web
  port http 10.96.0.10:80/TCP ClusterIP
    forward
      10.244.1.5:8080 weight 100
      10.244.2.7:8080 weight 300
`
	after = `
global
  masquerade-mark 0x4000
service shop/web
  port http 10.96.0.10:80/TCP ClusterIP
    forward
      10.244.1.5:8080 weight 100
      10.244.2.7:8080 weight 200
`
)

// mustParse is for examples; Parse returns the line of an error.
func mustParse(text string) *plan.Plan {
	p, err := plan.Parse(text)
	if err != nil {
		panic(err)
	}
	return p
}

// A backend programs a plan as far as its capabilities allow, and only the difference to the previous one.
func Example() {
	caps := plan.Caps{
		Name: "example", Ratios: true, MaxTotal: 1000,
		Balances: []plan.Balance{plan.Random},
	}
	prev := plan.Normalize(mustParse(before), caps)
	next := plan.Normalize(mustParse(after), caps)
	for _, change := range plan.Diff(prev, next).Changes {
		fmt.Print(plan.FormatFrontend(change.New))
	}
	// Output:
	// service shop/web
	//   port http  10.96.0.10:80/TCP  ClusterIP  masquerade=never balance=random
	//     forward 2 endpoints, total 3
	//       10.244.1.5:8080  weight 1   33.3 %  active
	//       10.244.2.7:8080  weight 2   66.7 %  active
}

func ExampleFormatDiff() {
	fmt.Print(plan.FormatDiff(mustParse(before), mustParse(after)))
	// Output:
	//   service shop/web
	//     port http  10.96.0.10:80/TCP  ClusterIP  masquerade=never balance=random
	// -     forward 2 endpoints, total 400
	// -       10.244.1.5:8080  weight 100   25.0 %  active
	// -       10.244.2.7:8080  weight 300   75.0 %  active
	// +     forward 2 endpoints, total 300
	// +       10.244.1.5:8080  weight 100   33.3 %  active
	// +       10.244.2.7:8080  weight 200   66.7 %  active
}

// What a backend cannot represent is never silent.
func ExampleFit() {
	caps := plan.Caps{
		Name: "example", Ratios: true, MaxTotal: 2,
		Balances: []plan.Balance{plan.Random},
	}
	for _, d := range plan.Fit(mustParse(before), caps).Degradations() {
		fmt.Println(d)
	}
	// Output: shop/web:http 10.96.0.10:80/TCP: wanted exact weights, got weights rounded to a sum of 2: example: the weights of a pool have at most that sum
}

func ExamplePlan_Trace() {
	flow := plan.Flow{
		From: netip.MustParseAddr("10.244.1.5"), To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: model.TCP,
	}
	outcome := mustParse(before).Trace(flow, nil)
	fmt.Println(outcome.Verdict, outcome.Frontend.Owner)
	for _, c := range outcome.Candidates {
		fmt.Printf("%s %.0f %% masquerade=%v\n", c.Addr, 100*c.Share, c.Masquerade)
	}
	// Output:
	// forward shop/web:http
	// 10.244.1.5:8080 25 % masquerade=true
	// 10.244.2.7:8080 75 % masquerade=false
}
