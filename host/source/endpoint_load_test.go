package source

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

func TestEndpointLoadIsCheckedAgain(t *testing.T) {
	type values = map[string]v1alpha1.LoadValue
	many, most := values{}, &v1alpha1.EndpointLoad{}
	for i := range maxLoadValues + 1 {
		many[fmt.Sprint("utilization/u", i)] = "1"
	}
	for i := range maxLoadEndpoints + 1 {
		most.Endpoints = append(most.Endpoints, v1alpha1.ReportedLoad{Address: fmt.Sprintf("10.0.%d.%d", i>>8, i&255), Values: values{"eps": "1"}})
	}
	for _, test := range []struct {
		address string
		values  values
		want    string // values
		problem string
	}{
		{"10.0.0.1", values{"eps": "1.5", "cpu_utilization": "0", "named_metrics/queue.depth": "123456789012.123456789"}, "map[10.0.0.1:map[cpu_utilization:0 eps:1.5 named_metrics/queue.depth:123456789012.123456789]]", ""},
		{"fd00::1", values{"rps_fractional": "12"}, "map[fd00::1:map[rps_fractional:12]]", ""},
		{"10.0.0.1", nil, "map[]", ""},
		{"web-0", values{"eps": "1"}, "map[]", "endpoints[0].address: "},
		{"", values{"eps": "1"}, "map[]", "endpoints[0].address: "},
		{"10.0.0.1", values{"eps": "-1"}, "map[]", `endpoints[0].values[eps]: "-1" is not a decimal number`},
		{"10.0.0.1", values{"eps": "NaN"}, "map[]", `"NaN" is not`},
		{"10.0.0.1", values{"eps": "1e9"}, "map[]", `"1e9" is not`},
		{"10.0.0.1", values{"eps": v1alpha1.LoadValue(strings.Repeat("1", 13))}, "map[]", "is not a decimal number"},
		{"10.0.0.1", values{"eps": "1", "request_cost/x": "1"}, "map[10.0.0.1:map[eps:1]]", "endpoints[0].values[request_cost/x]: no field"},
		{"10.0.0.1", many, "map[]", "33, at most 32 are allowed"},
	} {
		o := &v1alpha1.EndpointLoad{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Endpoints: []v1alpha1.ReportedLoad{{Address: test.address, Values: test.values}}}
		v, problems := EndpointLoad(o, nil)
		if got := fmt.Sprint(v.Values); got != test.want || test.problem == "" && len(problems) > 0 || test.problem != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), test.problem)) {
			t.Errorf("%s %v: %s, %v; want %s, %q", test.address, test.values, got, problems, test.want, test.problem)
		}
	}
	if v, problems := EndpointLoad(most, nil); len(v.Values) != maxLoadEndpoints || len(problems) != 1 || !strings.Contains(problems[0].Error(), "endpoints: 1001, at most 1000") {
		t.Errorf("%d endpoints, %v", len(v.Values), problems)
	}
	some := &v1alpha1.EndpointLoad{Endpoints: []v1alpha1.ReportedLoad{{Address: "10.0.0.1", Values: values{"eps": "1", "cpu_utilization": "x"}}}}
	if v, problems := EndpointLoad(some, []string{"eps", "mem_utilization"}); fmt.Sprint(v.Values) != "map[10.0.0.1:map[eps:1]]" || len(problems) > 0 {
		t.Errorf("some fields: %v, %v", v.Values, problems)
	}
	if v, _ := EndpointLoad(some, []string{}); len(v.Values) > 0 {
		t.Errorf("no fields: %v", v.Values)
	}
}
