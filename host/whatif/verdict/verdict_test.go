package verdict_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

func metrics(overload, failed, calls float64) []verdict.Metric {
	return []verdict.Metric{
		{Name: "overload", Value: overload, Unit: verdict.Ratio, Text: "overload"}, {Name: "failed", Value: failed, Unit: verdict.Share, Text: "failed connections"},
		{Name: "calls", Value: calls, Text: "calls", Neutral: true},
	}
}

func TestBetterAndWorseAreAboutTheCandidate(t *testing.T) {
	for _, test := range []struct {
		candidate, baseline []verdict.Metric
		want                string
	}{
		{metrics(1, 0.2, 9), metrics(2, 0.1, 1), "Better: overload 1.00 instead of 2.00. Worse: failed connections 20.0 % instead of 10.0 %."},
		{metrics(2, 0.1, 1), metrics(1, 0.2, 9), "Better: failed connections 10.0 % instead of 20.0 %. Worse: overload 2.00 instead of 1.00."},
		{metrics(1.001, 0, 1), metrics(1, 0, 9), "No number is better or worse."}, // as they are printed
	} {
		if got := strings.Join(verdict.Sentences(verdict.Compare(test.candidate, test.baseline)), " "); got != test.want {
			t.Errorf("%s, want %s", got, test.want)
		}
	}
}

func TestConditions(t *testing.T) {
	names := []string{"overload", "failed", "calls"}
	for text, want := range map[string]string{
		"overload > 1.5":              "overload of the candidate is 2.00",
		"candidate.overload > 1.5":    "overload of the candidate is 2.00",
		"baseline.overload > 1.5":     "",
		"overload > baseline":         "overload of the candidate is 2.00, of the baseline 1.00",
		"failed >= 10%":               "",
		"failed(shop/web) >= 10%":     "failed of shop/web:http of the candidate is 50.0 %",
		"failed(shop/*) > baseline":   "failed of shop/web:http of the candidate is 50.0 %, of the baseline 0.0 %",
		"failed(*) != 0":              "failed of shop/web:http of the candidate is 50.0 %",
		"baseline.failed(*) > 0":      "failed of shop/api:http of the baseline is 10.0 %",
		"failed(shop/api) > baseline": "",
		"failed(shop/wep) > 0":        "there is no such Service",
	} {
		c, err := verdict.ParseCondition(text, names, names)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		all := verdict.Conditions{c}
		part := all.Clone()
		all.AddRuns(metrics(2, 0.05, 1), metrics(1, 0.05, 1))
		all.AddService("shop/web", "shop/web:http", metrics(1, 0.5, 1), metrics(1, 0, 1))
		part.AddService("shop/api", "shop/api:http", metrics(1, 0, 1), metrics(1, 0.1, 1))
		all.Merge(part)
		err, holds := all.Err()
		if holds != (want != "" && !strings.HasPrefix(want, "there is")) || want == "" && err != nil || want != "" && (err == nil || err.Error() != "--fail-if "+text+": "+want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestAConditionNamesTheSameServicesInAnyOrder(t *testing.T) {
	result := func(order int) string {
		c, err := verdict.ParseCondition("overload(*) > 1", []string{"overload"}, []string{"overload"})
		if err != nil {
			t.Fatal(err)
		}
		all := verdict.Conditions{c}
		parts := []verdict.Conditions{all.Clone(), all.Clone()}
		for i := range 100 {
			n := (i*37 + order) % 100
			parts[n%2].AddService(fmt.Sprintf("a/%02d", n), fmt.Sprintf("a/%02d:80", n), metrics(2, 0, 0))
		}
		all.Merge(parts[order%2])
		all.Merge(parts[1-order%2])
		err, _ = all.Err()
		return err.Error()
	}
	first := result(0)
	if !strings.HasPrefix(first, "--fail-if overload(*) > 1: overload of a/00:80 of the candidate is 2.00; ") || !strings.HasSuffix(first, "a/09:80 of the candidate is 2.00; and 90 more") {
		t.Error(first)
	}
	for order := range 20 {
		if got := result(order); got != first {
			t.Fatalf("%s, want %s", got, first)
		}
	}
}

func TestWrongConditions(t *testing.T) {
	names := []string{"overload"}
	for text, want := range map[string]string{
		"overload":                     "want METRIC OPERATOR NUMBER",
		"b.overload > 1":               "want METRIC OPERATOR NUMBER",
		"overlod > 1":                  `no metric overlod (did you mean "overload"?)`,
		"overload(web) > 1":            `"web": want NAMESPACE/NAME`,
		"overload(a/b/c) > 1":          `"a/b/c": want NAMESPACE/NAME`,
		"overload([) > 1":              `"[": want NAMESPACE/NAME`,
		"baseline.overload > baseline": "compares the baseline with itself",
		"overload > 1e999":             "is not a number",
	} {
		if _, err := verdict.ParseCondition(text, names, names); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
