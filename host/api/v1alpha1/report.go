package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeReport is what a node has in force. It has the name of its Node, which owns it, and only that node writes it. The status of
// plugins and policies is made of the reports of all nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=snr,categories=sluice
// +kubebuilder:metadata:annotations="sluice.dev/schema=1"
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.report.version`
// +kubebuilder:printcolumn:name="Policies",type=integer,JSONPath=`.report.policyCount`
// +kubebuilder:printcolumn:name="Failing",type=string,JSONPath=`.report.policies[*].name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +required
	Report Report `json:"report"`
}

// NodeReportList is a list of NodeReports.
//
// +kubebuilder:object:root=true
type NodeReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeReport `json:"items"`
}

// Report is what a node has in force.
type Report struct {
	// Version of sluice.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Version string `json:"version,omitempty"`
	// Observed are the resource versions up to which the node has read the kinds.
	// +optional
	Observed Observed `json:"observed,omitzero"`
	// PolicyCount is the number of policies that apply on the node.
	// +kubebuilder:validation:Minimum=0
	// +optional
	PolicyCount int32 `json:"policyCount"`
	// Plugins that policies use.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Plugins []PluginReport `json:"plugins,omitempty"`
	// Policies that fail on the node or have fallen back, at most 256; PoliciesOmitted is the number of others.
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	// +optional
	Policies []PolicyReport `json:"policies,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	PoliciesOmitted int32 `json:"policiesOmitted,omitempty"`
}

// Observed are resource versions.
type Observed struct {
	// +kubebuilder:validation:MaxLength=32
	// +optional
	ServicePlugins string `json:"servicePlugins,omitempty"`
	// +kubebuilder:validation:MaxLength=32
	// +optional
	ServicePolicies string `json:"servicePolicies,omitempty"`
	// +kubebuilder:validation:MaxLength=32
	// +optional
	ClusterServicePolicies string `json:"clusterServicePolicies,omitempty"`
}

// PluginReport is a plugin on a node.
type PluginReport struct {
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// Digest of the module that is in force.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Digest string `json:"digest,omitempty"`
	// Reason is why the plugin as it is registered is not in force.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// PolicyReport is a policy that is not in force on a node as it should be.
type PolicyReport struct {
	// Namespace is empty for a ClusterServicePolicy.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// +kubebuilder:validation:Enum=Failing;FallenBack;Invalid;NotAllowed;Pending
	// +required
	Reason string `json:"reason"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// Reasons of a PolicyReport.
const (
	ReasonFailing    = "Failing"    // its last good decision is in force, or the default rules are
	ReasonFallenBack = "FallenBack" // its guard has passed it over
	ReasonInvalid    = "Invalid"    // the version before may be in force
	ReasonNotAllowed = "NotAllowed" // its plugins are not there for it
	ReasonPending    = "Pending"    // its guard still counts connections without it
)
