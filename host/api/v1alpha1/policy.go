package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ServicePolicy attaches a chain of plugins to Services of its namespace, or to single ports of them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=spol,categories=sluice
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="sluice.dev/schema=1"
// +kubebuilder:metadata:labels="gateway.networking.k8s.io/policy=Direct"
// +kubebuilder:printcolumn:name="Plugin",type=string,JSONPath=`.spec.plugins[*].name`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.programmedNodes`
// +kubebuilder:printcolumn:name="Fallen back",type=integer,JSONPath=`.status.nodes.fallenBack`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ServicePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +required
	Spec ServicePolicySpec `json:"spec"`
	// +optional
	Status PolicyStatus `json:"status,omitzero"`
}

// ServicePolicyList is a list of ServicePolicies.
//
// +kubebuilder:object:root=true
type ServicePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ServicePolicy `json:"items"`
}

// ServicePolicySpec is a policy and its targets.
type ServicePolicySpec struct {
	// TargetRefs are the Services that the policy applies to. Of two policies for one target, the older one applies. A policy for
	// a port takes precedence over one for the Service.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.name == b.name && (has(a.sectionName) ? a.sectionName : '') == (has(b.sectionName) ? b.sectionName : '')))",message="the targets must be distinct"
	// +listType=atomic
	// +required
	TargetRefs []TargetRef `json:"targetRefs"`
	Chain      `json:",inline"`
}

// TargetRef names a Service of the policy's namespace, or a port of it.
type TargetRef struct {
	// Group is that of Services: empty.
	// +kubebuilder:validation:Enum=""
	// +kubebuilder:default=""
	// +optional
	Group string `json:"group"`
	// +kubebuilder:validation:Enum=Service
	// +kubebuilder:default=Service
	// +optional
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// SectionName is the name of a port; absent: all ports.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	SectionName string `json:"sectionName,omitempty"`
}

// ClusterServicePolicy is a default for all Services that it selects, or overrides what they have.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=cspol,categories=sluice
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="sluice.dev/schema=1"
// +kubebuilder:metadata:labels="gateway.networking.k8s.io/policy=Inherited"
// +kubebuilder:printcolumn:name="Plugin",type=string,JSONPath=`.spec.plugins[*].name`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Overrides",type=boolean,JSONPath=`.spec.overrides`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.programmedNodes`
// +kubebuilder:printcolumn:name="Fallen back",type=integer,JSONPath=`.status.nodes.fallenBack`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterServicePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +required
	Spec ClusterServicePolicySpec `json:"spec"`
	// +optional
	Status PolicyStatus `json:"status,omitzero"`
}

// ClusterServicePolicyList is a list of ClusterServicePolicies.
//
// +kubebuilder:object:root=true
type ClusterServicePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterServicePolicy `json:"items"`
}

// ClusterServicePolicySpec is a policy and the Services that it selects: all, without namespaces and serviceSelector.
type ClusterServicePolicySpec struct {
	// Namespaces are those of the Services; empty: all.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// ServiceSelector is on the labels of Services; absent: all.
	// +optional
	ServiceSelector *LabelSelector `json:"serviceSelector,omitempty"`
	// Overrides makes the policy apply before ServicePolicies, annotations and the configuration file, not after them.
	// +optional
	Overrides bool `json:"overrides,omitempty"`
	Chain     `json:",inline"`
}

// Chain is what a policy does.
//
// +kubebuilder:validation:XValidation:rule="!has(self.guard) || !has(self.mode) || self.mode == 'Enforce'",message="a guard is for mode Enforce: a shadow changes no traffic"
// +kubebuilder:validation:XValidation:rule="has(self.plugins) || has(self.trafficHint)",message="plugins or trafficHint required"
// +kubebuilder:validation:XValidation:rule="has(self.plugins) || !(has(self.guard) || has(self.ignoreHints) && self.ignoreHints || has(self.mode) && self.mode == 'Shadow')",message="plugins are required with mode Shadow, guard and ignoreHints"
type Chain struct {
	// Plugins are asked one after the other. A policy with a trafficHint needs none.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Plugins []PluginStep `json:"plugins,omitempty"`
	// Mode Shadow compares the policy with what is in force without it, and enforces nothing.
	// +kubebuilder:validation:Enum=Enforce;Shadow
	// +kubebuilder:default=Enforce
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// FailurePolicy is what decides while a plugin fails: its last good decision, or kube-proxy's rules.
	// +kubebuilder:validation:Enum=LastGood;Default
	// +kubebuilder:default=LastGood
	// +optional
	FailurePolicy string `json:"failurePolicy,omitempty"`
	// Rollout restricts the policy to some of the nodes.
	// +optional
	Rollout *Rollout `json:"rollout,omitempty"`
	// Guard makes a node fall back from the policy when more connections fail than without it.
	// +optional
	Guard *Guard `json:"guard,omitempty"`
	// Panic holds endpoints that become unready together.
	// +optional
	Panic *Panic `json:"panic,omitempty"`
	// IgnoreHints gives plugins all ready endpoints, whatever topology hints say.
	// +optional
	IgnoreHints bool `json:"ignoreHints,omitempty"`
	// MaxShedPercentPerSecond bounds which part of an endpoint's connections plugins may reset in a second.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=1
	// +optional
	MaxShedPercentPerSecond int32 `json:"maxShedPercentPerSecond,omitempty"`
	// TrafficHint LongLived lets packets of established connections, over TCP and UDP, go by a flowtable, where the node can
	// (mode nftables, no rules of other programs that filter forwarded packets). Mode Shadow ignores it.
	// +kubebuilder:validation:Enum=LongLived
	// +optional
	TrafficHint string `json:"trafficHint,omitempty"`
}

// LongLived is the value of Chain.TrafficHint.
const LongLived = "LongLived"

// Mode is whether a policy is enforced.
type Mode string

// Values of Mode.
const (
	Enforce Mode = "Enforce"
	Shadow  Mode = "Shadow"
)

// PluginStep is a plugin of a chain.
type PluginStep struct {
	// Name is that of a ServicePlugin, or of a plugin in the configuration file.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// Settings of the plugin, at most 8 KiB as JSON.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Settings *runtime.RawExtension `json:"settings,omitempty"`
}

// MaxSettings is the maximum length of settings as JSON, in bytes. Schemas cannot express it: nodes check it.
const MaxSettings = 8 << 10

// Rollout is some of the nodes.
//
// +kubebuilder:validation:XValidation:rule="has(self.percent) != has(self.nodeSelector)",message="one of percent and nodeSelector is required"
type Rollout struct {
	// Percent of the nodes, rounded to a tenth. When the number is raised, nodes that have the policy keep it.
	// +kubebuilder:validation:Type=number
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:validation:XValidation:rule="self >= 0.1",message="must be from 0.1 to 100"
	// +optional
	Percent *float64 `json:"percent,omitempty"`
	// NodeSelector is on the labels of Nodes.
	// +optional
	NodeSelector *LabelSelector `json:"nodeSelector,omitempty"`
}

// Guard lets nodes fall back from a policy.
type Guard struct {
	// FailedPercent is how many more of a hundred connections may fail than without the policy.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +required
	FailedPercent int32 `json:"failedPercent"`
	// Window is for how long connections are counted, such as 30s.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5s') && duration(self) <= duration('10m')",message="must be from 5s to 10m"
	// +optional
	Window string `json:"window,omitempty"`
}

// Panic holds endpoints that become unready together.
type Panic struct {
	// Below is the percentage of ready endpoints below which others are held.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +required
	Below int32 `json:"below"`
	// Hold is for how long, at most, such as 5m, in whole seconds.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="must be from 1s to 1h"
	// +optional
	Hold string `json:"hold,omitempty"`
}

// LabelSelector is a label selector with bounds. All requirements must match.
//
// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="matchLabels or matchExpressions required"
// +structType=atomic
type LabelSelector struct {
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && size(self[k]) <= 63)",message="a key has at most 317 characters, a value at most 63"
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	MatchExpressions []LabelRequirement `json:"matchExpressions,omitempty"`
}

// LabelRequirement is a condition on a label.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",message="values are required with In and NotIn, and forbidden with Exists and DoesNotExist"
type LabelRequirement struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +required
	Key string `json:"key"`
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	// +required
	Operator string `json:"operator"`
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Values []string `json:"values,omitempty"`
}
