// SPDX-License-Identifier: Apache-2.0
// Empty: the precompiled header that all torch sources share needs a source to belong to.
