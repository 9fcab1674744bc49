package controller

import (
	"fmt"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

const maxMessage = 512 // bytes of a condition's message

// conditions are those of one object, or of one of its ancestors.
type conditions struct {
	list       *[]metav1.Condition
	generation int64
}

// set sets a condition. Its time stays while its status does.
func (c conditions) set(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	for len(message) > maxMessage || !utf8.ValidString(message) {
		message = message[:min(len(message)-1, maxMessage)]
	}
	meta.SetStatusCondition(c.list, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: c.generation,
		LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))})
}

// progress sets the conditions that exist while they are true, as kstatus and so Flux know them: Reconciling and Stalled.
func (c conditions) progress(reconciling, stalled bool, reason, message string) {
	for kind, is := range map[string]bool{v1alpha1.ConditionReconciling: reconciling, v1alpha1.ConditionStalled: stalled} {
		if is {
			c.set(kind, metav1.ConditionTrue, reason, "%s", message)
		} else {
			meta.RemoveStatusCondition(c.list, kind)
		}
	}
	slices.SortFunc(*c.list, func(a, b metav1.Condition) int { return order(a.Type) - order(b.Type) })
}

func order(kind string) int {
	return slices.Index([]string{v1alpha1.ConditionAccepted, v1alpha1.ConditionResolved, v1alpha1.ConditionProgrammed, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled}, kind)
}

func equal(a, b any) bool { return reflect.DeepEqual(a, b) }

// failures collects reasons for which something is not in force, each with the first node.
type failures struct{ list []v1alpha1.Failure }

func (f *failures) add(reason, node, message string) {
	if i := slices.IndexFunc(f.list, func(x v1alpha1.Failure) bool { return x.Reason == reason }); i >= 0 {
		f.list[i].Count++
		return
	}
	f.list = append(f.list, v1alpha1.Failure{Reason: reason, Count: 1, Node: node, Message: message})
}

// most returns the most frequent ones.
func (f *failures) most() []v1alpha1.Failure {
	slices.SortStableFunc(f.list, func(a, b v1alpha1.Failure) int { return int(b.Count - a.Count) })
	return f.list[:min(len(f.list), 8)]
}

// text describes failures.
func text(list []v1alpha1.Failure) (out string) {
	for i := range list {
		f := &list[i]
		if out += fmt.Sprintf("; %s on %d, such as %s", f.Reason, f.Count, f.Node); f.Message != "" {
			out += " (" + f.Message + ")"
		}
	}
	return out
}
