package abi

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestParseKeys(t *testing.T) {
	longest := "service-annotation:" + strings.Repeat("a", 253) + "/" + strings.Repeat("b", 63)
	all := []string{"label:track", "annotation:sluice.dev/capacity", KeyPodCPU, "service-label:app.kubernetes.io/name", longest, "node-label:a/b", "namespace-label:team",
		"load:application_utilization", "load:named_metrics/queue.depth"}
	for _, text := range []string{strings.Join(all, "\n"), strings.Join(all, "\n") + "\n"} {
		if got, err := ParseKeys(text); err != nil || !slices.Equal(got, all) {
			t.Errorf("got %q, %v", got, err)
		}
	}
	for _, text := range []string{"", "\n"} {
		if got, err := ParseKeys(text); err != nil || len(got) != 0 {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	var pods, endpoints []bool
	for _, k := range all {
		pods, endpoints = append(pods, IsPodKey(k)), append(endpoints, IsEndpointKey(k))
	}
	if !slices.Equal(pods, []bool{true, true, true, false, false, false, false, false, false}) || !slices.Equal(endpoints, []bool{true, true, true, false, false, true, false, true, true}) {
		t.Errorf("keys of Pods: %v, of endpoints: %v", pods, endpoints)
	}
	most := strings.Repeat(longest+"\n", MaxKeys)
	if len(most) != MaxKeysLen {
		t.Errorf("the longest text has %d bytes, MaxKeysLen is %d", len(most), MaxKeysLen)
	}
}

func TestInvalidKeysAreRefusedByNumber(t *testing.T) {
	for text, want := range map[string]string{
		"label:a\nlabel:a":                 `key 1: "label:a" is declared twice`,
		"label:a\n\nlabel:b":               `key 1: "" is of an unknown kind`,
		"label:a\n\n":                      `key 1: "" is of an unknown kind`,
		"colour:red":                       `key 0: "colour:red" is of an unknown kind`,
		"label":                            "unknown kind",
		"request:memory":                   "unknown kind",
		"request:cpu:x":                    "unknown kind",
		"Label:a":                          "unknown kind",
		"label:":                           `"" is not the name of a label`,
		"label:-a":                         "not the name",
		"label:a.":                         "not the name",
		"label:a b":                        "not the name",
		"label:a\r":                        "not the name",
		"label:a\x00":                      "not the name",
		"label:ä":                          "not the name",
		"label:A/b":                        "not the name",
		"label:a..b/c":                     "not the name",
		"label:/a":                         "not the name",
		"label:a/":                         "not the name",
		"label:a/b/c":                      "not the name",
		"label:a_b/c":                      "not the name",
		"label:" + strings.Repeat("a", 64): "not the name",
		"label:" + strings.Repeat("a", 254) + "/b":    "not the name",
		"label:" + strings.Repeat("a", 400):           "is 406 bytes, more than 336",
		"load:":                                       `"" is no load: want one of application_utilization, cpu_utilization`,
		"load:cpu":                                    "no load",
		"load:utilization":                            "no load",
		"load:utilization/":                           "no load",
		"load:utilization/a/b":                        "no load",
		"load:named_metrics/a\r":                      "no load",
		"load:named_metrics/-a":                       "no load",
		"load:request_cost/a":                         "no load",
		"load:utilization/" + strings.Repeat("a", 64): "no load",
		strings.Repeat("label:a\n", 17):               "17 keys, more than 16",
	} {
		if keys, err := ParseKeys(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %q, %v, want %q", text, keys, err, want)
		}
	}
}

// FuzzParseKeys compares with a regular expression: that of Kubernetes for qualified names.
func FuzzParseKeys(f *testing.F) {
	for _, s := range []string{"label:a", "request:cpu\nlabel:a.b/c_d", "service-annotation:x\nservice-label:x\n", "label:a/b/c", "\n"} {
		f.Add(s)
	}
	f.Add("load:eps\nload:utilization/a.b\nload:utilization/a/b")
	const part = `([a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)`
	const subdomain = `([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)`
	valid := regexp.MustCompile(fmt.Sprintf(`^(request:cpu|(label|annotation|service-label|service-annotation):(%s/)?%s|load:(eps|utilization/%s))$`, subdomain, part, part))
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := ParseKeys(text)
		want := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if want[0] == "" && len(want) == 1 {
			want = nil
		}
		ok := len(want) <= MaxKeys
		for i, k := range want {
			_, name, _ := strings.Cut(k, ":")
			prefix, rest, qualified := strings.Cut(name, "/")
			if !qualified {
				prefix, rest = "", name
			}
			ok = ok && !slices.Contains(want[:i], k) && len(prefix) <= 253 && len(rest) <= 63 && !strings.HasSuffix(k, "\n") && valid.MatchString(k)
		}
		if ok != (err == nil) || ok && !slices.Equal(keys, want) {
			t.Errorf("%q: %q, %v; want %t", text, keys, err, ok)
		}
	})
}
