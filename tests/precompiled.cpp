// SPDX-License-Identifier: Apache-2.0
// Empty: the precompiled headers that all tests share need a source to belong to.
