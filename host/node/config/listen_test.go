package config

import (
	"slices"
	"strings"
	"testing"
)

func TestAddressesThatClashAreWarnings(t *testing.T) {
	const inRange = " is in nodePortRange 30000-32767: a Service with this NodePort takes the connections"
	for text, want := range map[string][]string{
		"": nil,
		"metricsBindAddress: 0.0.0.0:10249\nhealthzBindAddress: 0.0.0.0:10249\n": {
			"healthzBindAddress: 0.0.0.0:10249 is the address of metricsBindAddress, 0.0.0.0:10249, so one of the two servers cannot listen"},
		"metricsBindAddress: 127.0.0.1:10256\n": {
			"healthzBindAddress: 0.0.0.0:10256 is the address of metricsBindAddress, 127.0.0.1:10256, so one of the two servers cannot listen"},
		"metricsBindAddress: '[::]:9000'\nhealthzBindAddress: 192.0.2.1:9000\n": {
			"healthzBindAddress: 192.0.2.1:9000 is the address of metricsBindAddress, [::]:9000, so one of the two servers cannot listen"},
		"metricsBindAddress: '0.0.0.0:9000'\nhealthzBindAddress: '[::1]:9000'\n":   nil,
		"metricsBindAddress: 127.0.0.1:9000\nhealthzBindAddress: 192.0.2.1:9000\n": nil,
		"metricsBindAddress: ''\nhealthzBindAddress: ''\n":                         nil,
		"metricsBindAddress: 127.0.0.1:0\nhealthzBindAddress: 127.0.0.1:0\n":       nil,
		"statusPageBindAddress: 127.0.0.1:10251\n":                                 nil,
		"statusPageBindAddress: 127.0.0.1:10249\n": {
			"statusPageBindAddress: 127.0.0.1:10249 is the address of metricsBindAddress, 127.0.0.1:10249, so one of the two servers cannot listen"},
		"statusPageBindAddress: 192.0.2.1:0\n": {
			"statusPageBindAddress: 192.0.2.1:0 is not a loopback address: whoever reaches it reads the names and addresses of all Services and their endpoints"},
		"stateBindAddress: 127.0.0.1:10249\n": {
			"stateBindAddress: 127.0.0.1:10249 is the address of metricsBindAddress, 127.0.0.1:10249, so one of the two servers cannot listen"},
		"metricsBindAddress: 0.0.0.0:10250\n":                                   {"metricsBindAddress: 10250 is the default port of the kubelet"},
		"healthzBindAddress: 0.0.0.0:30256\n":                                   {"healthzBindAddress: 30256" + inRange},
		"healthzBindAddress: 0.0.0.0:30256\nnodePortRange: 31000-32000\n":       nil,
		"metricsBindAddress: 127.0.0.1:30249\n":                                 nil,
		"metricsBindAddress: 127.0.0.1:30249\nnodePortAddresses: [localhost]\n": {"metricsBindAddress: 30249" + inRange},
	} {
		c, err := Parse([]byte(head+"clusterCIDR: 10.0.0.0/8\n"+text), "/")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Warnings(); !slices.Equal(got, want) {
			t.Errorf("%s\nwarnings:\n%s\nwant:\n%s", text, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
