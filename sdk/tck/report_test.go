package tck

import (
	"errors"
	"strings"
	"testing"
)

func TestReportHasAVerdictForEachRequirement(t *testing.T) {
	requirements := []Requirement{
		{"X1", Must, "Exports", "it is there", "put it there"}, {"X2", Must, "Imports", "it is good", "make it good"}, {"X3", Should, "Limits", "it is small", "make it small"},
		{"X4", Must, "Limits", "it is blue", "paint it"}, {"X5", Must, "Limits", "it is new", "buy one"},
	}
	found := map[string]error{"X1": nil, "X2": errors.New("it is \x1b[31m\xff bad\n"), "X3": errors.New("large"), "X4": Skipped("no paint")}
	r := NewReport(requirements, found, "not tried")
	if r.Conforms || r.Passed != 1 || r.Failed != 1 || r.Warned != 1 || r.Skipped != 2 {
		t.Errorf("%+v", r)
	}
	var text strings.Builder
	r.Print(&text)
	const want = `pass  X1  MUST    it is there
FAIL  X2  MUST    it is good
      found: it is \x1b[31m\xff bad\n
      to do: make it good (ABI.md, Imports)
warn  X3  SHOULD  it is small
      found: large
      to do: make it small (ABI.md, Limits)
skip  X4  MUST    it is blue
      no paint
skip  X5  MUST    it is new
      not tried

1 passed, 1 failed, 1 warnings, 2 skipped
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	delete(found, "X2")
	if r := NewReport(requirements, found, ""); !r.Conforms {
		t.Error("a warning and what is skipped do not conform")
	}
}

func TestRequirementsHaveIDsInOrder(t *testing.T) {
	last := ""
	for _, q := range Requirements() {
		if q.ID <= last || q.Text == "" || q.Advice == "" || q.Section == "" {
			t.Errorf("%+v after %s", q, last)
		}
		last = q.ID
	}
}
