package kube

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEventsAreDocumented: the table for operators has each reason.
func TestEventsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("event_recorder.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^\tReason\w+ += "(\w+)"$`).FindAllStringSubmatch(string(source), -1)
	if len(reasons) < 18 {
		t.Fatalf("%d reasons", len(reasons))
	}
	_, table, _ := strings.Cut(string(readme), "| reason | object |")
	for _, r := range reasons {
		if !regexp.MustCompile(`(?m)^\| [^|]*\b` + r[1] + `\b`).MatchString(table) {
			t.Errorf("%s is not in the table of deploy/README.md", r[1])
		}
	}
}
